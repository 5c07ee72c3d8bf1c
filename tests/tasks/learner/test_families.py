"""Every family of models that is taken: from its folder through a step to its export, against the model's own attention."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from nbrl.tasks.learner.batch.tree import chain
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.settings import LoraSettings, UpdateSettings
from nbrl.tasks.model_folder.check import check_model
from nbrl.tasks.model_folder.safetensors_files import weights
from tests.tasks.learner import update_lab

pytestmark = pytest.mark.usefixtures("alone")

SIZES: dict[str, Any] = {
    "vocab_size": update_lab.VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
KINDS = [
    ("Qwen3", "float32", {"tie_word_embeddings": True, "head_dim": 32}),
    ("Qwen3", "bfloat16", {"tie_word_embeddings": False, "head_dim": 16, "attention_bias": True}),
    ("Qwen2", "float16", {"tie_word_embeddings": True, "sliding_window": 8, "use_sliding_window": False}),
    ("Qwen2", "float32", {"tie_word_embeddings": False, "rope_parameters": YARN}),
    ("Llama", "bfloat16", {"tie_word_embeddings": True, "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    (
        "Llama",
        "float32",
        {"tie_word_embeddings": False, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ),
    ("Mistral", "float32", {"sliding_window": None}),
    ("Olmo2", "float32", {}),
    ("Phi3", "float32", {"sliding_window": 512}),
    ("SmolLM3", "float32", {"no_rope_layer_interval": 2}),
    ("Qwen3Moe", "float32", EXPERTS),
    # These are forwarded path by path: capped scores, windows, sinks, positions as biases, and no attention at all.
    ("Gemma2", "float32", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    ("Mistral", "float32", {"sliding_window": 8}),
    ("GptOss", "float32", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 8}),
    ("Bloom", "float32", {"n_layer": 2, "n_head": 4}),
    ("Mamba", "float32", {"state_size": 8}),
]


def make(folder: Path, family: str, dtype: str, fields: dict[str, Any]) -> None:
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**SIZES, **fields)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():  # biases and norms begin as constants, which would hide that they are lost
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="60KB")


def own_logprobs(lm: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logp = torch.log_softmax(lm(input_ids=torch.tensor([ids])).logits[0].float(), dim=-1)
    return logp[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]


def own(folder: Path | str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize(
    ("family", "dtype", "fields"),
    [pytest.param(*kind, marks=() if kind[0] in ("Qwen3", "Llama") else pytest.mark.more) for kind in KINDS],
)
def test_a_model_is_loaded_trained_and_exported(tmp_path: Path, family: str, dtype: str, fields: dict[str, Any]) -> None:
    source = tmp_path / "model"
    make(source, family, dtype, fields)
    if not fields.get("tie_word_embeddings"):
        (source / "generation_config.json").unlink()
    check_model(str(source))
    settings = UpdateSettings(workers=1, lr=1e-3, kl_coefficient=0)
    learner = Learner(settings, update_lab.places(source), torch.device("cpu"))
    trajectories = update_lab.make_trajectories(1, 3)
    ids = trajectories[0].path(len(trajectories[0].nodes) - 1)
    before = learner._loaded.passes.logprobs(chain(ids))
    torch.testing.assert_close(torch.tensor(before), own_logprobs(own(source), ids), rtol=1e-5, atol=2e-5)

    order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out"), proof_token_ids=ids)
    result = learner.execute(order)
    assert not result.skipped
    exported = tmp_path / "out" / "hf"
    check_model(str(exported))
    kept = {name: info.dtype for name, info in weights(source).items()}
    assert {name: info.dtype for name, info in weights(exported).items()} == kept
    again = torch.tensor(update_lab.proved(result))
    rounding = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 2e-1}[dtype]  # of the exported weights
    torch.testing.assert_close(own_logprobs(own(exported), ids), again, rtol=0, atol=rounding)
    assert (again - torch.tensor(before)).abs().max() > 1e-3
    reloaded = Learner(settings, update_lab.places(exported), torch.device("cpu"))._loaded.passes.logprobs(chain(ids))
    torch.testing.assert_close(torch.tensor(reloaded), own_logprobs(own(exported), ids), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("family", "dtype", "fields"),
    [
        pytest.param(*kind, marks=() if kind[0] in ("Qwen3", "Qwen3Moe") else pytest.mark.more)
        for kind in KINDS
        if kind[1] == "float32" and kind[0] != "Mamba"  # whose layers peft adapts in part
    ],
)
def test_adapters_are_trained_and_merged(tmp_path: Path, family: str, dtype: str, fields: dict[str, Any]) -> None:
    source = tmp_path / "model"
    make(source, family, dtype, fields)
    settings = UpdateSettings(workers=1, lr=1e-2, lora=LoraSettings(rank=2))
    learner, trajectories = Learner(settings, update_lab.places(source), torch.device("cpu")), update_lab.make_trajectories(1, 3)
    ids = trajectories[0].path(3)
    result = learner.execute(update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out"), proof_token_ids=ids))
    check_model(str(tmp_path / "out" / "hf"))
    after = torch.tensor(update_lab.proved(result))
    torch.testing.assert_close(own_logprobs(own(tmp_path / "out" / "hf"), ids), after, rtol=1e-5, atol=2e-5)
    assert (after - own_logprobs(own(source), ids)).abs().max() > 1e-3
