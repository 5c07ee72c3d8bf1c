"""Writes docs/families.md: how tiny models of every causal family of transformers are forwarded, as is proved for each.

Usage: python docs/families.py. It takes some minutes; a test of the slowest tier compares what it writes.
"""

import os
import resource
import signal
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.step.equality import proved

PAGE = Path(__file__).with_name("families.md")
LIMIT_S, MEMORY = 30, 8 << 30  # of one family; the address space has torch in it
NOT_TRIED = "not tried: no tiny model could be made"
SIZES = {
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "moe_intermediate_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads",), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("head_dim",), 8),
    **dict.fromkeys(("pad_token_id",), 0),
    **dict.fromkeys(("bos_token_id",), 1),
    **dict.fromkeys(("eos_token_id",), 2),
}
# Of those whose keys and values are made of shorter vectors.
LATENT = {
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    "num_key_value_heads": 4,
}
HEAD = """# Families of models

How a tiny random model of each causal family of transformers {version} is forwarded, as `update.attention: auto` proves it
([learning.md](learning.md#which-models-policypath)). Made by `python docs/families.py` on a CPU. What decides for a folder is its
own configuration: with a window that is narrower than its context, a family that has trees here may need paths.

| how | families |
|---|---|
"""


def tiny(family: str) -> Any:
    """Return a tiny configuration of a family, as far as it has the usual names."""
    kind = CONFIG_MAPPING[family]
    usual = kind()
    sizes = SIZES | (LATENT if hasattr(usual, "kv_lora_rank") else {})
    given = {name: size for name, size in sizes.items() if _has(usual, name)}
    if "kv_lora_rank" in given:
        given.pop("head_dim", None)
    return kind(**given)


def _has(config: Any, name: str) -> bool:
    return name in config.to_dict() or hasattr(config, name)


def verdict(family: str) -> str:
    """Return how the family is forwarded, found in a process that can take neither all memory nor all time."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(LIMIT_S)
        os.write(writing, proof(family).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        found = said.read()
    os.waitpid(child, 0)
    return found or NOT_TRIED


def proof(family: str) -> str:
    """Return how the family is forwarded."""
    try:
        forward = proved(tiny(family))
    except UpdateError as error:
        return "not exact" if "cannot be trained exactly" in str(error) else NOT_TRIED
    except BaseException:
        return NOT_TRIED
    return f"{forward.kind}{', with its own logits' if forward.own_head else ''}"


def page() -> str:
    """Return the page."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found: dict[str, list[str]] = {}
    for family in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        found.setdefault(verdict(family), []).append(family)
    order = sorted(found, key=lambda how: (how.startswith("not"), not how.startswith("tree"), how))
    return HEAD.format(version=transformers.__version__) + "".join(f"| {how} | {', '.join(found[how])} |\n" for how in order)


if __name__ == "__main__":
    PAGE.write_text(page())
