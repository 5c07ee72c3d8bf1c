"""Estimates the GPU memory of a training, part by part, from the model's shape and the settings.

What a layer keeps of a token for its backward pass was counted by hooks on the tensors that transformers' layers save in
bfloat16; tests count it again. A GPU measured up to a fifth less: it frees some of it early.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nbrl.agent.context.context import check_room
from nbrl.agent.errors import ContextError
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.infra.gpu import gpus, memory_of_gpus
from nbrl.infra.parse import json_value
from nbrl.infra.paths import content
from nbrl.infra.ray_cluster import RaySettings
from nbrl.tasks.errors import ConfigError, UpdateError
from nbrl.tasks.learner.places import on_cuda
from nbrl.tasks.learner.settings import StepSettings, UpdateSettings
from nbrl.tasks.model_folder.check import check_model, check_targets
from nbrl.tasks.model_folder.config_json import check_experts
from nbrl.tasks.model_folder.shape import KNOWN, Shape
from nbrl.tasks.model_folder.source import PolicySettings, local_config
from nbrl.tasks.runs.config import RunConfig

GIB = 1 << 30
CONTEXT = 1.0 * GIB  # of CUDA and its libraries, in each process
ENGINE_BESIDES = 3.0 * GIB  # of an engine, beyond its mem-fraction-static: graphs, a prefill, its context
FRACTION = "mem-fraction-static"
USUAL_FRACTION = 0.85  # about what SGLang takes without it
LOGITS = 64e6  # numbers of a slice of logits
NORMED = ("qwen3", "gemma3", "olmo2")  # families that normalise queries and keys
# Names: what a learner has between updates, an engine's room for keys and values, and a card while the engine has lent it.
KEPT, CACHE, UPDATING = ("state", "reference", "teacher"), "KV cache", ", updating"
STATE, GRADIENT, MASTER = 12, 4, 4  # bytes of a trained number: with both moments, its gradient, alone


class Card(NamedTuple):
    """One kind of GPU of a training: bytes by what takes them, and bytes that it has, 0 where that is not known."""

    name: str
    parts: dict[str, float]
    total: int

    @property
    def taken(self) -> float:
        return sum(self.parts.values())


def cards(config: RunConfig) -> list[Card]:
    """Return the kinds of GPUs of the training; empty on a CPU, and where the model's shape is not known."""
    update, engine = config.update, config.engine
    here, joined = gpus(), config.ray.address is not None
    shape = shape_of(config.policy.path)
    if shape is None or update.device == "cpu" or engine.resolved_device == "cpu" or not (here or joined):
        return []
    total = 0 if joined else min(memory_of_gpus(), default=0)
    learner = {f"learner's {name}": size for name, size in learner_parts(config, shape).items()}
    sampler = {f"engine's {name}": size for name, size in _engine_parts(config, shape, total).items()}
    ranks, sharing = update.workers, not joined and engine.count * engine.tensor_parallel + update.workers > here
    if sharing and config.pipeline.lag:
        return [Card("engine and learner", learner | sampler, total)]
    if sharing:  # the engine's cache is not there while the learner works, nor the learner's activations while the engine does
        lending = {name: size for name, size in sampler.items() if not name.endswith(CACHE)}
        waiting = {name: size for name, size in learner.items() if name.endswith(KEPT)} | {"learner's context": CONTEXT}
        return [
            Card(f"engine and learner{UPDATING}", learner | lending, total),
            Card("engine and learner, sampling", waiting | sampler, total),
        ]
    return [
        Card(f"learner ({ranks})", learner, total),
        Card(f"engines ({engine.count * engine.tensor_parallel})", sampler, total),
    ]


def table(config: RunConfig) -> list[str]:
    """Return a line for each kind of GPU."""
    lines = []
    for card in cards(config):
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in card.parts.items())
        of_all = f" of {card.total / GIB:.0f}" if card.total else ""
        lines.append(f"{card.name}: about {card.taken / GIB:.0f}{of_all} GiB: {parts}")
    return lines


def check_fits(config: RunConfig) -> None:
    """Raises ConfigError where a GPU of this machine has less memory than the training needs, with the settings to change."""
    for card in cards(config):
        if card.total and card.taken > card.total:
            sizes = f"needs about {card.taken / GIB:.0f} GiB and has {card.total / GIB:.0f}"
            raise ConfigError(f"a GPU of {card.name} {sizes}; {_remedy(config, card)}")


def shape_of(path: str) -> Shape | None:
    """Return the shape of a model in a folder, or of one of those in nbrl's recipes."""
    folder = Path(path)
    if not folder.is_dir():
        return KNOWN.get(path)
    try:
        config = json_value(content(folder / "config.json"))
    except (OSError, ValueError):
        return None
    return Shape.of(config) if isinstance(config, dict) else None


def learner_parts(config: RunConfig, shape: Shape) -> dict[str, float]:
    """Return the bytes on the GPU of one rank, at the end of a micro-batch's forward pass."""
    update, ranks, parameters = config.update, config.update.workers, shape.parameters
    number = 8 if update.dtype == "float64" else 4 if update.dtype == "float32" else 2
    batch = config.rollout.prompts * config.rollout.group_size * config.agent.context_tokens
    tokens = min(update.tokens_per_micro_batch, math.ceil(batch / ranks))
    models = 1 if update.critic is None else 2
    if update.lora:
        state = models * number * parameters / ranks
    else:
        state = 0.0 if "optimizer" in update.offload else models * (STATE + GRADIENT) * parameters / ranks
    reference = bool(update.kl_coefficient) and not update.lora and "reference" not in update.offload
    taught = 0.0
    if update.teacher is not None and not update.teacher.served:  # one of another run is like the policy
        taught = (shape_of(update.teacher.teacher) or shape).parameters
    layer = kept_bytes(shape) * number / 2
    layers = layer * tokens * shape.num_hidden_layers
    if update.activation_checkpointing:
        layers = tokens * (layer + number * shape.hidden_size * shape.num_hidden_layers)
    # One layer's weights twice, and its gradient; the embedding's; slices of logits; what a layer's backward pass makes.
    gathered: float = shape.layer_parameters * (2 * number + GRADIENT)
    gathered += shape.embedding_parameters * (number + GRADIENT * (1 if ranks == 1 else 2))
    gathered += tokens * shape.intermediate_size * number * 3 + LOGITS * (number + 2 * GRADIENT)
    return {
        KEPT[0]: state,
        **({KEPT[1]: number * parameters / ranks} if reference else {}),
        **({KEPT[2]: number * taught / ranks} if taught else {}),
        "activations": layers,
        "buffers": gathered + CONTEXT,
    }


def kept_bytes(shape: Shape) -> float:
    """Return the number of bytes of a token that a layer keeps for its backward pass, in bfloat16."""
    normed = shape.model_type.startswith(NORMED)
    of_queries, of_keys = (12, 10) if normed else (6, 4)
    return 16 * shape.hidden_size + 8 * shape.intermediate_size + of_queries * shape.queries + of_keys * shape.keys


def _engine_parts(config: RunConfig, shape: Shape, total: int) -> dict[str, float]:
    engine = config.engine
    weights = 2.0 * shape.parameters / engine.tensor_parallel
    fraction = _fraction(engine.extra_args)
    cache = max(0.0, fraction * total - weights) if total else 0.0
    return {"weights": weights, **({CACHE: cache} if cache else {}), "buffers": ENGINE_BESIDES}


def _fraction(extra_args: Mapping[str, str]) -> float:
    try:
        return float(extra_args.get(FRACTION, USUAL_FRACTION))
    except ValueError:
        return USUAL_FRACTION


def _remedy(config: RunConfig, card: Card) -> str:
    update, ways = config.update, []
    if "learner" in card.name:
        ways += [] if update.activation_checkpointing else ["set update.activation_checkpointing to true"]
        ways += [f"lower update.tokens_per_micro_batch from {update.tokens_per_micro_batch}"]
        ways += [] if update.lora else ["raise update.workers, or set update.lora or update.offload"]
    if "engine" in card.name and not card.name.endswith(UPDATING):
        ways += [f"lower engine.extra_args.{FRACTION}", "raise engine.tensor_parallel"]
    return "; or ".join(ways)


def check_reads(policy: PolicySettings, agent: AgentSettings) -> bool:
    """Return whether the model is in a folder, which then suits the agent's limits; one of the hub is not looked at.

    Raises ConfigError if it does not suit them, or there is no such model.
    """
    model, limit = local_config(policy), agent.context_tokens
    if model is None:
        return False
    if limit > model.get("max_position_embeddings", limit):
        raise ConfigError(
            f"agent.context_tokens is {limit} but the policy reads at most {model['max_position_embeddings']} tokens; lower it"
        )
    tokenizer = ChatTokenizer.load(policy.path, agent)
    if tokenizer.vocab_size > model["vocab_size"]:
        raise ConfigError(
            f"policy.path {policy.path}: the tokenizer has more tokens than the model's vocab_size; they do not match"
        )
    try:
        if agent.kind == "program":
            Conversations.load(tokenizer, agent)  # whose template takes whole conversations
        else:
            check_room(tokenizer, agent, tools="")  # what is said of the tools is known when they are open
    except ContextError as error:
        raise ConfigError(str(error)) from error
    return True


def check_learns(path: str, update: StepSettings) -> None:
    """Raises ConfigError if the learner cannot train the model of this folder."""
    try:
        check_model(path)
        if isinstance(update, UpdateSettings) and update.router_replay:
            check_experts(path)
        check_targets(path, update.lora.target_modules if update.lora else ())
    except UpdateError as error:
        raise ConfigError(f"policy.path: {error}") from error


def check_devices(update: UpdateSettings, ray: RaySettings) -> None:
    """Raises ConfigError if the learner's devices are not there; those of a cluster are known when it is joined."""
    if ray.address is not None:
        return
    try:
        on_cuda(update, gpus() if ray.num_gpus is None else ray.num_gpus)
    except UpdateError as error:
        raise ConfigError(str(error)) from error
