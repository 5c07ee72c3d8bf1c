"""Describes what a run would do, as its configuration and in words."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from nbrl.infra.engine.command import CPU_TOTAL_TOKENS
from nbrl.infra.gpu import gpus
from nbrl.infra.parse import json_value
from nbrl.tasks.model_folder.forwards import kind_of
from nbrl.tasks.model_folder.safetensors_files import FLOATS, TensorInfo, weights
from nbrl.tasks.model_folder.shape import Shape
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import digest
from nbrl.tasks.runs.gpu_memory import table

UNITS = ("B", "kB", "MB", "GB", "TB")
STATE_BYTES = 12  # per trained number in float32: the number and AdamW's two moments
GRADIENT_BYTES = 4
STAGED_BYTES = STATE_BYTES + 4  # host memory of a checkpoint: copies of the state, and of the whole weights that engines load
# Resident memory without a model, measured on Linux: an engine's three processes, a worker with torch, Ray and transformers, and
# everything else together (the command, Prefect, MLflow, Ray, a runner); a runner more with the kernel that its kernels are
# forked from; a kernel beside that one.
ENGINE_BYTES, WORKER_BYTES, OTHERS_BYTES, RUNNER_BYTES, KERNEL_BYTES = 1.1e9, 0.5e9, 3.0e9, 0.2e9, 12e6
# Numbers that a layer keeps of each token for its backward pass, as multiples of its widths.
KEPT_HIDDEN, KEPT_INNER = 10, 5


def disk(config: RunConfig) -> str:
    """Return the disk space of the run's checkpoints in words; empty if the model's files are not on this machine."""
    folder = Path(config.policy.path)
    if not folder.is_dir():
        return ""
    tensors, keep = weights(folder), config.checkpoints
    float32 = config.published_dtype == "float32"
    model = sum(info.elements * (4 if float32 else FLOATS.get(info.dtype, 4)) for info in tensors.values())
    state = STATE_BYTES * trained_numbers(config, tensors)
    recent = config.iterations if keep.keep_last is None else min(keep.keep_last, config.iterations)
    others = min(config.iterations - recent, keep.keep_best + (config.iterations // keep.keep_every if keep.keep_every else 0))
    # One more has the state for a newest without: where it is still written, or not every one has it.
    apart = keep.state_every > 1
    bases = min(config.iterations - recent, (1 if apart or recent == 1 else 0) + (others if apart and keep.state == "all" else 0))
    states = math.ceil(recent / keep.state_every) + bases + (others if keep.state == "all" and not apart else 0)
    total = (recent + others + bases) * model + states * state
    newest = model + state if recent < config.iterations else 0  # it is written before an older one is deleted
    more = ", and what the adapters take" if config.update.lora else ""
    return f"a checkpoint takes about {in_words(model + state)}{more}; those that stay take at most {in_words(total + newest)}"


def memory(config: RunConfig) -> str:
    """Return the memory of a training in words; empty where `memory_shares` are."""
    shares = memory_shares(config)
    parts = ", ".join(f"{name} {in_words(each)}" for name, each in shares.items())
    return f"about {in_words(sum(shares.values()))}: {parts}" if shares else ""


def memory_shares(config: RunConfig) -> dict[str, float]:
    """Return the bytes of a training on a CPU by what takes them, in the phase that takes most: kernels live while trajectories
    are sampled, gradients while the policy is updated, both with a lag. Empty on a GPU, for a cluster, or if the model's files
    are not here.
    """
    folder = Path(config.policy.path)
    if not folder.is_dir() or config.ray.address is not None or gpus():
        return {}
    tensors, shape = weights(folder), Shape.of(json_value((folder / "config.json").read_text()))
    if shape is None:
        return {}
    engines, pools = config.engine.count * engine_bytes(config, tensors, shape), config.pools
    runners = pools * config.rollout.runners
    others, kernels = OTHERS_BYTES + (runners - 1) * RUNNER_BYTES, runners * config.sandbox.max_live * KERNEL_BYTES
    learner = learner_bytes(config, tensors, shape)
    if config.pipeline.lag:
        return {"engines": engines, "learner": learner, "everything else": others + kernels}
    idle = idle_learner_bytes(config, tensors) + STATE_BYTES * trained_numbers(config, tensors)  # a copy is still written
    sampling = {"engines": engines, "learner": idle, "everything else": others + kernels}
    updating = {"engines": engines, "learner": learner, "everything else": others}
    return max(sampling, updating, key=lambda shares: sum(shares.values()))


def engine_bytes(config: RunConfig, tensors: Mapping[str, TensorInfo], shape: Shape) -> float:
    """Return the bytes of one engine on a CPU: its weights, and keys and values of as many tokens as it keeps."""
    number = 4 if config.engine.computes_in_float32 else 2
    kept = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * number
    parameters = sum(info.elements for info in tensors.values())
    return ENGINE_BYTES + number * parameters + kept * (config.engine.max_total_tokens or CPU_TOTAL_TOKENS)


def idle_learner_bytes(config: RunConfig, tensors: Mapping[str, TensorInfo]) -> float:
    """Return the bytes of all workers on a CPU between two updates: sharded state, and weights that are not trained."""
    update = config.update
    parameters = sum(info.elements for info in tensors.values())
    frozen = 4 * parameters if update.kl_coefficient or update.lora else 0
    return update.workers * WORKER_BYTES + STATE_BYTES * trained_numbers(config, tensors) + frozen


def trained_numbers(config: RunConfig, tensors: Mapping[str, TensorInfo]) -> int:
    """Return the number of numbers that an update changes, without those of adapters, which are few."""
    models = 1 if config.update.critic is None else 2
    return 0 if config.update.lora else models * sum(info.elements for info in tensors.values())


def learner_bytes(config: RunConfig, tensors: Mapping[str, TensorInfo], shape: Shape) -> float:
    """Return the bytes of all workers on a CPU at the end of an update: besides the state, gradients, what the backward pass
    needs of a micro-batch, and the copies of which the checkpoint is written. A batch has at most as many tokens as its
    trajectories may have.
    """
    update = config.update
    batch = config.rollout.prompts * config.rollout.group_size * config.agent.context_tokens
    tokens = min(update.tokens_per_micro_batch, math.ceil(batch / update.workers))
    layers = 1 if update.activation_checkpointing else shape.num_hidden_layers
    kept = KEPT_HIDDEN * shape.hidden_size + KEPT_INNER * shape.intermediate_size
    number = {"bfloat16": 2, "float32": 4, "float64": 8}[update.passes_dtype(cuda=False)]
    more = (GRADIENT_BYTES + STAGED_BYTES) * trained_numbers(config, tensors)
    return idle_learner_bytes(config, tensors) + update.workers * tokens * layers * kept * number + more


def attention(config: RunConfig) -> str:
    """Return how the policy is forwarded, and what that costs; empty if the model's files are not on this machine.

    Raises UpdateError if it cannot be trained exactly.
    """
    if not Path(config.policy.path).is_dir():
        return ""
    if kind_of(config.policy.path, config.update.attention, config.nodes) == "tree":
        return "trees, so that what trajectories share is forwarded once"
    most = (config.agent.max_steps + 1) / 2
    return f"path by path, for the model is not exact on trees: up to about {most:g} times the tokens of a trajectory"


def in_words(size: float) -> str:
    """Return the bytes with three digits and a unit."""
    exponent = min(len(UNITS) - 1, int(math.log10(max(size, 1)) // 3))
    return f"{size / 1000**exponent:.3g} {UNITS[exponent]}"


def plan(config: RunConfig, every: bool = False) -> str:
    """Return the settings that are not at their defaults, or every one, as YAML, and below them a summary of the quantities
    that determine time, memory and disk.
    """
    rollout, update = config.rollout, config.update
    batch = rollout.prompts * rollout.group_size
    kl = "no KL, no reference model"
    if update.kl_coefficient:
        kl = f"{update.kl_estimator} KL × {update.kl_coefficient:g} to the initial policy in the {update.kl_in}"
    lines = [
        f"# {config.name}: {config.iterations} iterations from {config.policy.path}, configuration {digest(config)[:12]}",
        f"# an iteration: {rollout.prompts} prompts × {rollout.group_size} = {batch} trajectories of at most "
        f"{_steps(config)} steps, up to {config.select.max_rounds} rounds",
        f"# rollout: {config.engine.count} engine(s), {rollout.runners} runner(s) × {rollout.episodes_per_runner} episodes"
        f"{f' for each of {config.pools} batches at once' if config.pools > 1 and not config.pipeline.stream else ''}, "
        f"{config.sandbox.provisioner} kernels",
        f"# update: {update.workers} FSDP2 workers, {config.advantage.estimator}, {update.loss.kind}, "
        f"{update.steps_per_batch} step(s) per batch, lr {update.lr:g}, {kl}",
        *(f"# attention: {text}" for text in [attention(config)] if text),
        *([f"# pipeline: {_pipeline(config)}"] if config.pipeline.lag else []),
        f"# storage: {config.storage.root}; servers' state: {config.home}",
        *(f"# memory: {text}" for text in [memory(config)] if text),
        *(f"# memory of a GPU, {text}" for text in table(config)),
        *(f"# disk: {text}" for text in [disk(config)] if text),
    ]
    settings = config.model_dump(mode="json", exclude_defaults=not every)
    others = "" if every else "# every other setting is at its default: --all shows them\n"
    return f"{yaml.safe_dump(settings, sort_keys=False)}{others}" + "\n".join(lines)


def _steps(config: RunConfig) -> str:
    """Return the steps that an episode may take, of all phases of a curriculum."""
    horizon = config.rollout.horizon
    return ", ".join(map(str, horizon.steps)) if horizon else str(config.agent.max_steps)


def _pipeline(config: RunConfig) -> str:
    """Return what runs at the same time, and what both need."""
    lag = config.pipeline.lag
    if config.pipeline.stream:
        text = f"{config.groups_in_flight} groups are sampled at once, through updates; what is learned from is at most {lag} "
        text += f"update{'s' * (lag > 1)} old"
    else:
        text = "the next batch is" if lag == 1 else f"the next {lag} batches are, at once and each by runners of its own,"
        text += " sampled while this one is learned from"
    if config.ray.address is None and config.engine.resolved_device == "cpu":
        ranks, processors = config.update.workers * config.update.threads_per_worker, len(os.sched_getaffinity(0))
        text += (
            f"; engines, kernels and {ranks} thread(s) of the update share this machine's {processors} processor(s), so that "
            "only what waits is won"
        )
    return text
