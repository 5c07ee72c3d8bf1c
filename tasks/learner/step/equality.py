"""Proves how a model can be forwarded: as a packed tree, or path by path. What is not proved equal is not used.

A small model of the same configuration is made at random; the log-probs of a random tree and all gradients of its weights must be
those of one plain sequence for each path. Windows and position scalings that act on long sequences only are made to act here.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from nbrl.infra.node_cache import NodeSettings
from nbrl.infra.parse import json_value
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.batch.examples import Example, TreeNode
from nbrl.tasks.learner.batch.micro_batch import to_device
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.model.forward import FORWARDS, Forward
from nbrl.tasks.learner.model.policy_model import PolicyModel
from nbrl.tasks.model_folder.forwards import kept_at

Wanted = Literal["auto", "tree", "paths"]
SEED = 0
STEPS, LONGEST = 6, 12  # of the tree: actions, and tokens of a message
SHORT, FEW = 8, 2  # at most, of blocks and the like, and how many of them are chosen
FAR = 40  # from so many tokens on, what acts on long sequences acts; some paths of the tree are twice as long
VOCABULARY, INNER, EXPERTS = 256, 512, 16  # at most, of the small model
LOGP_ERROR, GRADIENT_ERROR = 1e-3, 1e-2  # in nats, and as a share of a gradient's norm; a wrong attention is wrong by far more
# Fields of configurations that say from how many tokens on something acts, or how many of something there are.
LENGTHS = ("sliding_window", "attention_chunk_size", "window_size", "local_attention", "original_max_position_embeddings")
# Words in names of fields that say the same of what a family has of its own: blocks, chosen keys, scalings by position.
OF_LENGTHS = ("window", "chunk", "block_size", "topk_blocks", "index_topk", "floor_scale", "local", "stride", "compress")
SIZES = {
    **dict.fromkeys(("vocab_size",), VOCABULARY),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), INNER),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), EXPERTS),
}
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
CAP, SCALE = 2.0, 3.0  # at most, of scores; of the weights, over the square root of the numbers that they sum
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers")


def proved(config: PretrainedConfig, wanted: Wanted = "auto") -> Forward:
    """Return the first of FORWARDS that is proved equal for models of this configuration. Raises UpdateError if none is."""
    try:
        naive = _model(small(config), "eager")
        forest = _forest(naive.config.get_text_config().vocab_size)
        expected = _naive(naive, forest)
    except Exception as error:
        raise UpdateError(
            f"{config.model_type} cannot be loaded as its config.json says: a small model of it gives {_words(error)}"
        ) from error
    reasons = list[str]()
    for forward in FORWARDS:
        if wanted not in ("auto", forward.kind):
            continue
        try:
            reason = _differs(expected, _found(naive, forest, forward))
        except Exception as error:
            reason = _words(error)
        if not reason:
            return forward
        reasons.append(f"{forward.kind} by {forward.implementation}: {reason}")
    remedy = "" if wanted == "auto" else "; set update.attention to auto"
    raise UpdateError(f"a {config.model_type} model cannot be trained exactly ({reasons[-1]}){remedy}")


def forward_of(path: str, wanted: Wanted, nodes: NodeSettings) -> Forward:
    """Return how the model of a folder is forwarded. What was proved of its configuration is kept on this machine.

    Raises UpdateError as `proved` does.
    """
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:  # of whatever a configuration makes transformers do
        raise UpdateError(f"{path} cannot be loaded as its config.json says: {_words(error)}") from error
    kept = kept_at(path, wanted, nodes)
    with suppress(OSError, ValueError, TypeError):
        found = Forward(**json_value(kept.read_text()))
        if found in FORWARDS:
            return found
    forward = proved(config, wanted)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(asdict(forward)))  # one that is cut short is no JSON, and is proved again
    return forward


def small(config: PretrainedConfig) -> PretrainedConfig:
    """Return a small configuration of the same kind: two layers, or one of each type of layers, few words, and short windows."""
    values = config.to_dict()
    for key in ("architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path"):
        values.pop(key, None)
    layers = next((values[name] for name in LAYERS if isinstance(values.get(name), int)), 2)
    kept = _kept_layers(values, layers)
    for name in LAYERS:
        if isinstance(values.get(name), int):
            values[name] = len(kept)
    for name in PER_LAYER:
        if isinstance(values.get(name), list) and len(values[name]) == layers:
            values[name] = [values[name][layer] for layer in kept]
    for name, most in SIZES.items():
        if isinstance(values.get(name), int):
            values[name] = min(values[name], most)
    for name, value in values.items():
        if name.endswith("token_id") and isinstance(value, int) and value >= VOCABULARY:
            values[name] = None
    _shorten(values)
    return type(config)(**values)


def _kept_layers(values: dict[str, Any], layers: int) -> list[int]:
    """Return the numbers of the layers that stay: the first of each type, two at least."""
    lists = [values[name] for name in PER_LAYER if isinstance(values.get(name), list) and len(values[name]) == layers]
    types = list(map(str, zip(*lists, strict=True)))  # of each layer, by all lists
    kept = {types.index(each) for each in types}
    return sorted({*kept, *[layer for layer in range(layers) if layer not in kept][: max(0, 2 - len(kept))]})


def _shorten(values: dict[str, Any]) -> None:
    """Let what acts on long sequences act on those of the tree."""
    whole = values.get("max_position_embeddings")
    for name in LENGTHS:
        wide = isinstance(whole, int) and isinstance(values.get(name), int) and values[name] >= whole  # and never acts
        if isinstance(values.get(name), int) and values[name] > FAR // 2 and not wide:
            values[name] = FAR // 2
    for name, value in values.items():
        if type(value) is int and value > 1 and name not in LENGTHS and any(word in name for word in OF_LENGTHS):
            values[name] = min(value, FEW if "topk" in name else SHORT)
    for name in CAPS:
        if isinstance(values.get(name), float):
            values[name] = min(values[name], CAP)
    rope = [values.get(name) for name in ("rope_parameters", "rope_scaling")]
    parameters = [each for one in rope if isinstance(one, dict) for each in (one, *one.values()) if isinstance(each, dict)]
    for each in parameters:
        if each.get("original_max_position_embeddings"):
            each["original_max_position_embeddings"] = FAR
    scaled = any(each.get("rope_type", each.get("type", "default")) != "default" for each in parameters)
    if scaled and isinstance(values.get("max_position_embeddings"), int):
        values["max_position_embeddings"] = FAR


def _model(config: PretrainedConfig, implementation: str) -> PreTrainedModel:
    torch.manual_seed(SEED)
    lm: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=torch.float32)
    for parameter in lm.parameters():
        if parameter.dim() > 1:  # large enough that attention looks at few tokens, and a cap of its scores acts
            nn.init.normal_(parameter, std=SCALE / parameter.shape[-1] ** 0.5)
    return lm.eval()


def _forest(vocabulary: int) -> Forest:
    """Return the tree of two trajectories whose actions hang off one trunk."""
    draw = np.random.default_rng(SEED)

    def ids() -> np.ndarray:
        return draw.integers(3, vocabulary, draw.integers(3, LONGEST + 1))

    examples = []
    for number in range(2):
        nodes = [TreeNode(-1, False, -1, draw.integers(3, vocabulary, FAR // 2), np.zeros(0))]
        trunk = 0
        for step in range(STEPS - number * 2):
            nodes.append(TreeNode(trunk, False, step, ids(), np.zeros(0)))
            action = ids()
            nodes.append(TreeNode(len(nodes) - 1, True, step, action, np.zeros(len(action))))
            nodes.append(TreeNode(trunk, False, step, np.concatenate([action, ids()]), np.zeros(0)))
            trunk = len(nodes) - 1
        examples.append(Example(str(number), nodes, dict.fromkeys(range(STEPS - number * 2), 1.0)))
    return Forest(examples)


def _naive(lm: PreTrainedModel, forest: Forest) -> tuple[Tensor, dict[str, Tensor]]:
    """Return log-probs and gradients from one sequence for each action."""
    parts = []
    for action in forest.actions:
        node, path = action.place, list[int]()
        while node != -1:
            path[:0] = forest.ids[node].tolist()
            node = forest.parent[node]
        count = len(action.logprobs_T)
        logits_TV = lm(input_ids=torch.tensor([path]), use_cache=False).logits[0]
        logp_TV = torch.log_softmax(logits_TV[-count - 1 : -1].float(), dim=-1)
        parts.append(logp_TV.gather(1, torch.tensor(path[-count:])[:, None])[:, 0])
    return _with_gradients(lm, torch.cat(parts))


def _found(naive: PreTrainedModel, forest: Forest, forward: Forward) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the same from a forward of another kind."""
    lm = _model(naive.config, forward.implementation)
    lm.load_state_dict(naive.state_dict())
    micro = to_device(forest.pack(), torch.device("cpu"), forward.paths, forward.packed)
    policy_model = PolicyModel(lm, forward)
    logp_N = policy_model(micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N, micro.target_N)
    return _with_gradients(lm, logp_N)


def _with_gradients(lm: PreTrainedModel, logp_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    weight_N = torch.from_numpy(np.random.default_rng(SEED + 1).uniform(0.5, 1.5, len(logp_N))).float()  # one sign: none cancels
    lm.zero_grad()
    (logp_N * weight_N).mean().backward()
    return logp_N.detach(), {name: each.grad for name, each in lm.named_parameters() if each.grad is not None}


def _differs(expected: tuple[Tensor, dict[str, Tensor]], found: tuple[Tensor, dict[str, Tensor]]) -> str:
    """Return how two results differ by more than rounding; empty if they do not."""
    error = float((expected[0] - found[0]).abs().max())
    if not error <= LOGP_ERROR:
        return f"log-probs differ by {error:.2g}"
    for name, gradient in _pairs(expected[1], found[1]):
        size, apart = float(torch.linalg.norm(gradient[0])), float(torch.linalg.norm(gradient[0] - gradient[1]))
        if not apart <= GRADIENT_ERROR * size + 1e-6:
            return f"the gradient of {name} differs by {apart / max(size, 1e-12):.2g} of its size"
    return ""


def _pairs(expected: dict[str, Tensor], found: dict[str, Tensor]) -> Iterator[tuple[str, Sequence[Tensor]]]:
    for name, gradient in expected.items():
        yield name, (gradient, found.get(name, torch.zeros_like(gradient)))


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


if __name__ == "__main__":
    try:
        forward_of(sys.argv[1], sys.argv[2], NodeSettings(cache=sys.argv[3]))  # type: ignore[arg-type]
    except UpdateError as failure:
        sys.exit(str(failure))
