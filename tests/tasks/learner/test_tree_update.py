"""The benchmark of the tree: what it prints is whole, and the ways it compares give one gradient."""

import importlib
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks/tree_update.py"
SMALL = ["--scale", "0.02", "--rounds", "1", "--layers", "1", "--rollouts", "2", "--steps", "2"]
PROMPT, SAMPLED, OBSERVED, TAIL = 40, 3, 5, 2


def test_a_tree_forwards_unique_tokens_alone_to_the_gradient_of_single_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *SMALL])
    importlib.import_module(SCRIPT.stem).main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    a_step = TAIL + SAMPLED
    assert found["unique_tokens"] == found["tree_tokens"] == PROMPT + 2 * (2 * a_step + SAMPLED + OBSERVED)
    assert found["per_step_tokens"] == 2 * (2 * (PROMPT + a_step) + SAMPLED + OBSERVED)
    assert found["padded_tokens"] == 4 * (PROMPT + a_step + SAMPLED + OBSERVED)
    assert found["speedup_vs_padded"] > 0
    assert found["speedup_vs_per_step"] > 0
    assert 0 <= found["max_grad_diff"] <= 1e-5
    assert found["hardware"]
