"""`nbrl warmstart` and `nbrl distill` as commands, with a real Prefect, a real Ray and the learner's own passes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from nbrl.agent.tokens.tokenizer import ChatTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.more]

NBRL = str(Path(sys.executable).with_name("nbrl"))
TINY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"
SHORT = [
    "phases.copying.demonstrations.world.count=32",
    "phases.copying.epochs=1",
    "phases.habits.demonstrations.world.count=32",
    "phases.habits.epochs=1",
    "batch=4",
    "checkpoint_steps=2",
    "update.workers=1",
]


def _command(folder: Path, *arguments: str) -> list[str]:
    flags = [part for override in SHORT for part in ("--set", override)]
    return [NBRL, "warmstart", *arguments, *flags, "--home", str(folder / "home")]


def _make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(folder, *arguments), cwd=folder, capture_output=True, text=True, timeout=400, check=False)


def test_a_killed_warm_start_goes_on_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole = _make(tmp_path, "whole")
    assert whole.returncode == 0, whole.stderr
    assert "habits: loss" in whole.stdout
    assert "train it    nbrl train tiny-cpu --set policy.path=" in whole.stdout
    assert ChatTokenizer.load(tmp_path / "whole").vocab_size == 640

    killed = subprocess.Popen(_command(tmp_path, "killed"), cwd=tmp_path, start_new_session=True, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while not list(tmp_path.glob("killed.unfinished/results/000[1-9].json")) and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed").exists()
    again = _make(tmp_path, "killed")
    assert again.returncode == 0, again.stderr
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "killed", "whole"]

    refused = _make(tmp_path, "whole")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "exists; name a folder that does not" in refused.stderr


def test_adapters_and_passes_in_bfloat16_teach_a_model_that_is_there(tmp_path: Path) -> None:
    """What is written are whole weights, of which only the layers with adapters differ."""
    settings = ["phases.demonstrations.demonstrations.world.count=32", "batch=4", "update.lora.rank=4", "update.dtype=bfloat16"]
    flags = [part for setting in [*settings, "update.lr=1e-3", "checkpoint_steps=4"] for part in ("--set", setting)]
    asked = [NBRL, "warmstart", "taught", "--from", str(TINY), "--training", "tiny-cpu", *flags, "--home", str(tmp_path / "home")]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    before, after = (load_file(folder / "model.safetensors") for folder in (TINY, tmp_path / "taught"))
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all(".layers." in name and "norm" not in name for name in changed)
