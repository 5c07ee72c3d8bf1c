"""Memory that a step has used and freed is the system's again."""

from pathlib import Path

import torch

from nbrl.tasks.learner.process.memory import give_back

PIECES, BYTES = 4_000, 1 << 16  # small enough for the heap, where what is freed stays below what is in use


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_is_free_between_pieces_in_use_is_given_back() -> None:
    pieces = [torch.ones(BYTES // 4) for _ in range(PIECES)]
    kept = pieces[::20]
    del pieces
    before = resident()
    give_back()
    assert before - resident() > PIECES * BYTES // 2
    assert all(bool((each == 1).all()) for each in kept)
