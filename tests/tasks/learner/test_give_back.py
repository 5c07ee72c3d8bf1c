"""Memory that a step has used and freed is the system's again."""

from pathlib import Path

import pytest
import torch

from nbrl.tasks.learner.process.ranks import give_back

PIECES, BYTES = 4_000, 1 << 16  # small enough for the heap, where what is freed stays below what is in use


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_is_free_between_pieces_in_use_is_given_back() -> None:
    pieces = [torch.ones(BYTES // 4) for _ in range(PIECES)]
    kept = pieces[::20]
    del pieces
    before = resident()
    give_back(torch.device("cpu"))
    assert before - resident() > PIECES * BYTES // 2
    assert all(bool((each == 1).all()) for each in kept)


def test_what_torch_keeps_free_of_a_gpu_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine on the same GPU has no other way to it."""
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    give_back(torch.device("cuda"))
    assert emptied == [True]
