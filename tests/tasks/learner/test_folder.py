"""Which model folders can be trained, and what is said of those that cannot."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nbrl.agent.errors import TokenizerError
from nbrl.tasks.errors import ConfigError, UpdateError
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.model.load import stored_dtype
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.model_folder.check import check_model
from nbrl.tasks.runs.preflight import preflight
from nbrl.tasks.runs.recipes import load
from tests.tasks.learner import update_lab

TINY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"


def configure(folder: Path, **fields: Any) -> None:
    """Set keys of config.json; None takes one away."""
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vision_config": {}}, "multimodal"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"auto_map": {"AutoModelForCausalLM": "x.Y"}}, "code of its own"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "no causal language model"),
        ({"architectures": None}, "no causal language model"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "layers one by one"),
        ({"num_hidden_layers": 3, "layer_types": None}, "no weights of layer 2"),
        ({"num_hidden_layers": 3}, "2 layer_types but num_hidden_layers 3"),
        ({"vocab_size": 400}, "embed_tokens.weight of 300 x 64, but by config.json it is 400 x 64"),
        ({"hidden_size": 128}, "embed_tokens.weight of 300 x 64, but by config.json it is 300 x 128"),
        ({"num_key_value_heads": 4}, "k_proj.weight of 32 x 64, but by config.json it is 64 x 64"),
        ({"num_attention_heads": 2}, "q_proj.weight of 64 x 64, but by config.json it is 32 x 64"),
        ({"rope_scaling": "yarn"}, r"config\.json is not as it should be: rope_scaling: "),
        ({"layer_types": 5}, r"config\.json is not as it should be: layer_types: "),
        ({"architectures": 5}, r"config\.json is not as it should be: architectures: "),
        ({"num_hidden_layers": "2"}, r"config\.json is not as it should be: num_hidden_layers: "),
        ({"num_attention_heads": 0}, r"config\.json is not as it should be: num_attention_heads: "),
    ],
)
def test_a_configuration_that_is_not_exact_on_trees_is_refused(folder: Path, fields: dict[str, Any], words: str) -> None:
    configure(folder, **fields)
    with pytest.raises(UpdateError, match=words) as caught:
        check_model(str(folder))
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"qwen3"', "{", ""])
def test_a_configuration_of_another_form_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(UpdateError, match=r"config\.json is not as it should be") as caught:
        check_model(str(folder))
    assert "\n" not in str(caught.value)


def test_layers_that_lora_cannot_adapt_are_refused_before_a_run_starts(tmp_path: Path) -> None:
    overrides = ["update.lora.target_modules=[q_proj, k_norm]", f"home={tmp_path}/home"]
    with pytest.raises(ConfigError, match=r"no linear layers named 'k_norm'.*down_proj, gate_proj, k_proj"):
        preflight(load("tiny-cpu", overrides), "train")


@pytest.mark.parametrize(
    ("file", "fields", "words"),
    [
        ("config.json", {"vocab_size": 100}, "vocab_size"),
        ("tokenizer_config.json", {"chat_template": None}, "chat template"),
    ],
)
def test_a_run_is_refused_before_it_starts(tmp_path: Path, file: str, fields: dict[str, Any], words: str) -> None:
    folder = shutil.copytree(TINY, tmp_path / "model")
    found = json.loads((folder / file).read_text()) | fields
    (folder / file).write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    with pytest.raises((ConfigError, TokenizerError), match=words) as caught:
        preflight(load("tiny-cpu", [f"policy.path={folder}", f"home={tmp_path}/home"]), "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"vocab_size": "many"}', "{}", '{"vocab_size": 640, "max_position_embeddings": "512"}']
)
def test_a_configuration_that_is_none_is_one_sentence(tmp_path: Path, text: str) -> None:
    folder = shutil.copytree(TINY, tmp_path / "model")
    (folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json (cannot be read|is no model's)") as caught:
        preflight(load("tiny-cpu", [f"policy.path={folder}", f"home={tmp_path}/home"]), "train")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("lost", "more", "words"), [("q_norm", "more", "lacks the weights"), ("absent", "q_proj.bias", "does not describe")]
)
def test_weights_that_do_not_fit_the_configuration_are_refused(folder: Path, lost: str, more: str, words: str) -> None:
    found = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in found.items() if lost not in name}
    save_file(kept | {f"model.layers.0.self_attn.{more}": torch.zeros(64)}, folder / "model.safetensors")
    check_model(str(folder))
    with pytest.raises(UpdateError, match=words):
        Learner(UpdateSettings(workers=1), update_lab.places(folder), torch.device("cpu"))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"intermediate_size": 96}, r"holds .*mlp.* of shape \[.*128.*\], but by its config\.json it is \[.*96.*\]"),
        ({"hidden_act": "sil"}, r"cannot be loaded as its config\.json says: .*KeyError: 'sil'"),
        ({"rms_norm_eps": "small"}, r"cannot be loaded as its config\.json says: .*rms_norm_eps"),
    ],
)
def test_a_configuration_that_makes_no_model_of_the_weights_is_one_sentence(
    folder: Path, fields: dict[str, Any], words: str
) -> None:
    configure(folder, **fields)
    check_model(str(folder))
    with pytest.raises(UpdateError, match=words) as caught:
        Learner(UpdateSettings(workers=1), update_lab.places(folder), torch.device("cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("alone")
def test_an_output_layer_of_its_own_is_refused_where_the_configuration_ties_it(folder: Path) -> None:
    found = load_file(folder / "model.safetensors")
    output = found["model.embed_tokens.weight"] + 1
    save_file(found | {"lm_head.weight": output}, folder / "model.safetensors", {"format": "pt"})
    check_model(str(folder))
    with pytest.raises(UpdateError, match=r"lm_head\.weight other than its embedding.*tie_word_embeddings true"):
        Learner(UpdateSettings(workers=1), update_lab.places(folder), torch.device("cpu"))


@pytest.mark.parametrize("named", [None, "float32", "float8"])
def test_exports_keep_the_dtype_of_the_weights_whatever_the_configuration_names(folder: Path, named: str | None) -> None:
    weights = load_file(folder / "model.safetensors")
    half = {name: value if name == "model.norm.weight" else value.half() for name, value in weights.items()}
    save_file(half, folder / "model.safetensors", {"format": "pt"})
    configure(folder, dtype=named)
    assert stored_dtype(str(folder)) == torch.float16
