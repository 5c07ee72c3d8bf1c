"""The benchmark of a step: the learner, transformers and TRL do the same work."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "benchmarks/learner_step.py"
SMALL = ["--shape", "tiny", "--sequences", "3", "--prompt", "12", "--sampled", "20", "--rounds", "1"]


def run(*flags: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, SCRIPT, *SMALL, *flags], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.more
@pytest.mark.process
@pytest.mark.long
def test_all_three_report_the_same_losses() -> None:
    pytest.importorskip("trl")
    found = run("--rows", "2")  # refuses to report when they do not
    assert found["ratio_transformers"] > 0
    assert found["ratio_trl"] > 0


@pytest.mark.more
@pytest.mark.process
@pytest.mark.long
def test_the_share_of_the_peak_is_that_of_the_models_operations() -> None:
    found = run("--alone", "--peak-tflops", "0.5")
    assert found["model_flops_utilisation"] == pytest.approx(found["model_tflops_s"] / 0.5, abs=1e-4)
    layer = 64 * (2 * 64 + 2 * 32 + 3 * 96)
    a_token = 6 * (2 * layer + 64 * 640)  # at most: sampled, and without attention
    assert found["model_tflops_s"] * 1e12 < 2 * a_token * found["ours_tokens_s"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module(SCRIPT.stem)


def test_more_than_one_gpu_is_refused(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *SMALL, "--alone"])
    with pytest.raises(SystemExit):
        script.main()
    assert "2 GPUs are visible and the comparison is of one: set CUDA_VISIBLE_DEVICES" in capsys.readouterr().err


def test_the_clock_reads_once_the_gpu_has_done_what_was_queued(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    before, found, after = time.perf_counter(), script.clock(), time.perf_counter()
    assert before <= found <= after
    assert waited == [True]
