"""The day on a GPU, tried on this machine's processor: every part goes through and tells what it measured."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nbrl.infra.engine.command import command

TINY = Path(__file__).parents[1] / "infra/policies/tiny"
SCRIPT = Path(__file__).parents[1] / "benchmarks/gpu_day.py"
MEASURES = {
    "probe": {"tools", "memory_gib", "disk_write_gb_s", "copies_gb_s", "matrix_product_tflops", "group_s"},
    "attention": {"first", "long_tree", "others", "milliseconds"},
    "gradient": {"float32", "bfloat16", "halved"},
    "utilisation": {"tiny 20000", "tiny 20000 recompute", "profile", "layers eager 20000", "layers apart 20000"},
    "learner": {"plain", "critic", "lora with reference", "gspo, two steps", "bits", "order"},
    "publish": {"nearest", "comparison", "buckets"},
    "memory": {"whole activations beside engine", "recompute beside engine"},
    "engine": {"start", "publish", "lending", "sampling"},
}


def day(out: Path, *flags: str) -> tuple[list[dict[str, object]], int]:
    """The rows and the last line that it printed, and its exit status."""
    command = [sys.executable, SCRIPT, "--device", "cpu", "--tiny", "--out", out, *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


@pytest.mark.process
@pytest.mark.long
def test_all_parts_go_through_on_a_cpu(tmp_path: Path) -> None:
    (*rows, last), status = day(tmp_path)
    assert [(row["part"], row["errors"]) for row in rows] == [(part, {}) for part in MEASURES]
    for row in rows:
        assert row.keys() >= MEASURES[row["part"]] | {"hardware", "torch", "transformers", "seconds"}
        assert json.loads((tmp_path / f"{row['part']}.json").read_text()) == row
    attention, gradient, learner, publish, engine = (rows[number] for number in (1, 2, 4, 5, 7))
    assert max(attention["first"]["128 x 2 bfloat16"]["apart"].values()) < 0.02
    assert gradient["float32"]["max_grad_diff"] < 1e-5
    assert learner["lora with reference"]["moves_apart"] == 0  # beside itself
    assert learner["bits"]["deterministic True"] == dict.fromkeys(
        ("twice", "after_loading", "finished_order_is_answered", "moved"), True
    )
    assert publish["nearest"]["nearest"] == publish["nearest"]["numbers"]
    assert publish["comparison"]["one_bit"]["different"] == ["model.norm.weight"]
    assert engine["publish"]["different"] == []
    assert engine["publish"]["nats"]["most"] < 1e-4
    assert engine["lending"]["same_logprobs_after"]
    assert (last["failed"], status) == ({}, 0)


def test_the_part_of_the_engine_has_settings_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    engine = importlib.import_module("gpu.engine")
    line = command(engine.settings_of(True, False), TINY, 1, 0)
    assert {"--enable-memory-saver", "--enable-fp32-lm-head"} <= set(line)


@pytest.mark.process
@pytest.mark.long
def test_a_part_that_takes_too_long_is_told_and_the_next_ones_go_on(tmp_path: Path) -> None:
    (row, other, last), status = day(tmp_path, "--parts", "gradient,memory", "--limit", "0.1")
    assert [each["errors"]["part"].split(":")[0] for each in (row, other)] == ["took too long"] * 2
    assert (last["failed"], status) == ({"gradient": ["part"], "memory": ["part"]}, 1)
