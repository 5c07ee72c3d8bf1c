"""Comparisons by packages that are not ours: in a program of its own, confined as a kernel is, never in a Ray worker."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbrl.sandbox.start.program import confined_program
from nbrl.tasks.errors import RewardError

PROGRAM = Path(__file__).with_name("scorer.py")
START_S, EACH_S = 120.0, 5.0
READY = "ready"


def compare(rule: str, comparisons: Sequence[Mapping[str, Any]]) -> list[float]:
    """The score of each comparison, `{"answer", "answers", "reference"}`, from 0 to 1.

    An answer that ends the program is worth 0; a program goes on after it. Raises RewardError if the program does not start.
    """
    scores: list[float] = []
    while len(scores) < len(comparisons):
        left = comparisons[len(scores) :]
        done = _run(rule, left)
        # What a new program begins with is to blame for its end; what comes later is compared again, by a new program.
        scores += done or [0.0]
    return scores


def _run(rule: str, comparisons: Sequence[Mapping[str, Any]]) -> list[float]:
    """The scores until the program ended."""
    lines = "".join(f"{json.dumps(each)}\n" for each in comparisons)
    command = [*confined_program(PROGRAM), rule, str(EACH_S)]
    limit = START_S + (EACH_S + 1) * len(comparisons)
    try:
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=limit, env={}, cwd="/", check=False)
        said, complaint = done.stdout.splitlines(), done.stderr
    except subprocess.TimeoutExpired as error:
        said, complaint = (error.stdout or b"").decode(errors="replace").splitlines(), f"it took longer than {limit:g} s"
    if said[:1] != [READY]:
        reason = (complaint.strip().splitlines() or ["it said nothing"])[-1][:300]
        raise RewardError(f"the program that compares answers by the rule {rule!r} does not start: {reason}")
    return [float(line) for line in said[1 : len(comparisons) + 1]]
