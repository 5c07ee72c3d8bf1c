"""A GGUF file of the Llama architecture as transformers has it: names, the order of rows, the configuration."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.fetch.gguf_file import GgufFile

OUTPUT = "output.weight"
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TENSOR = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.weight")


def configuration(file: GgufFile, dtype: str) -> dict[str, Any]:
    """config.json. Raises ConfigError for a model of another architecture."""
    architecture = file.value("general.architecture")
    if architecture != "llama":
        raise ConfigError(f"the GGUF holds a model of the architecture {architecture}; only llama can be converted")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": file.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.value("tokenizer.ggml.padding_token_id"),
        "dtype": dtype,
        "head_dim": file.value("llama.rope.dimension_count"),
        "hidden_act": "silu",
        "hidden_size": file.value("llama.embedding_length"),
        "intermediate_size": file.value("llama.feed_forward_length"),
        "max_position_embeddings": file.value("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": file.value("llama.attention.head_count"),
        "num_hidden_layers": file.value("llama.block_count"),
        "num_key_value_heads": file.value("llama.attention.head_count_kv"),
        "rms_norm_eps": file.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.number("llama.rope.freq_base"),
        "tie_word_embeddings": OUTPUT not in file,
        "vocab_size": file.value("llama.vocab_size"),
    }


def generation(file: GgufFile) -> dict[str, Any]:
    """generation_config.json."""
    ends = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: file.value(f"tokenizer.ggml.{name}_token_id") for key, name in ends.items()}


def weights(file: GgufFile) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor by transformers' name, in float32. Raises ConfigError for one that a Llama does not have."""
    heads = {"attn_q": file.value("llama.attention.head_count"), "attn_k": file.value("llama.attention.head_count_kv")}
    for name, tensor in file.tensors():
        found = TENSOR.fullmatch(name)
        layer, part = found.group("layer", "part") if found else (None, "")
        known = (WHOLE if layer is None else OF_A_LAYER).get(part)
        if known is None:
            raise ConfigError(f"the GGUF holds {name}, which no plain Llama has; it cannot be converted")
        own = f"{known}.weight" if layer is None else f"model.layers.{layer}.{known}.weight"
        yield own, _in_halves(tensor, heads[part]) if part in heads else tensor


def _in_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a projection in transformers' order.

    llama.cpp rotates neighbours, transformers the two halves of a head; so its converter puts the halves' rows in turns.
    """
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
