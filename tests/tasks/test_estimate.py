"""Memory and disk of a training before it begins."""

import json
import re
import shutil
from pathlib import Path

import pytest

from nbrl.tasks.model_folder.safetensors_files import weights
from nbrl.tasks.model_folder.shape import Shape
from nbrl.tasks.runs import plan as plan_module
from nbrl.tasks.runs.plan import engine_bytes, in_words, learner_bytes, memory, plan
from nbrl.tasks.runs.recipes import load

TINY = Path(__file__).parents[2] / "infra" / "policies" / "tiny"
SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "gpus", list)


def test_the_width_of_a_head_is_known_where_the_configuration_leaves_it_out() -> None:
    shape = Shape.of(SMOLLM2)
    assert shape is not None
    assert (shape.head_dim, shape.num_key_value_heads) == (64, 3)
    assert Shape.of({**SMOLLM2, "head_dim": None, "model_type": "llama"}) == shape.model_copy(update={"model_type": "llama"})


@pytest.mark.parametrize("config", [{}, {"hidden_size": "wide"}, {**SMOLLM2, "num_attention_heads": 0}])
def test_a_family_with_other_names_has_no_estimate(config: dict[str, object]) -> None:
    assert Shape.of(config) is None


def test_what_takes_more_memory_counts_for_more() -> None:
    tensors, shape = weights(TINY), Shape.of(json.loads((TINY / "config.json").read_text()))
    assert shape is not None
    base = load("tiny-cpu")
    engine = engine_bytes(base, tensors, shape)
    assert engine < engine_bytes(load("tiny-cpu", ["engine.max_total_tokens=200000"]), tensors, shape)
    assert engine > engine_bytes(load("tiny-cpu", ["engine.max_total_tokens=1000"]), tensors, shape)
    learner = learner_bytes(base, tensors, shape)
    for less in ("update.kl_coefficient=0", "update.lora.rank=4", "update.tokens_per_micro_batch=100", "update.workers=1"):
        assert learner_bytes(load("tiny-cpu", [less]), tensors, shape) < learner, less
    for more in ("rollout.prompts=128", "update.tokens_per_micro_batch=20000"):
        assert learner_bytes(load("tiny-cpu", [more, "update.tokens_per_micro_batch=20000"]), tensors, shape) > learner, more


def test_the_plan_says_memory_and_disk_where_they_are_known(tmp_path: Path) -> None:
    said = plan(load("tiny-cpu"))
    assert re.search(r"# memory: about [\d.]+ GB: engines [\d.]+ GB, learner [\d.]+ GB, everything else [\d.]+ GB\n", said)
    assert "# memory" not in plan(load("tiny-cpu", ["policy.path=nobody/knows"]))
    assert "# memory" not in plan(load("tiny-cpu", ["ray.address=somewhere:6379"]))
    shutil.copytree(TINY, tmp_path / "odd")
    (tmp_path / "odd/config.json").write_text(json.dumps({"vocab_size": 640}))
    assert memory(load("tiny-cpu", [f"policy.path={tmp_path}/odd"])) == ""


def test_sizes_have_three_digits_and_a_unit() -> None:
    assert [in_words(size) for size in (0, 999, 1234, 15.16e9)] == ["0 B", "999 B", "1.23 kB", "15.2 GB"]


def test_with_a_lag_kernels_and_gradients_are_alive_together() -> None:
    beside = load("tiny-cpu", ["pipeline.lag=1", "pipeline.uncorrected=true", "sandbox.max_live=1000"])
    alone, together = (plan_module.memory_shares(config) for config in (load("tiny-cpu", ["sandbox.max_live=1000"]), beside))
    assert alone["everything else"] == together["everything else"]
    assert together["learner"] > alone["learner"]
