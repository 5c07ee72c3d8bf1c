"""Comparisons by packages that are not ours: in a program of its own, confined as a kernel is, never in a Ray worker."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbrl.infra.parse import json_value
from nbrl.sandbox.start.program import confined_program
from nbrl.tasks.errors import RewardError
from nbrl.tasks.reward.rules.exchange import exchange

PROGRAM = Path(__file__).with_name("scorer.py")
START_S = 120.0
CPU_S = 5.0  # of processor time for one comparison: it decides, so that a verdict is the same on a busy machine
WALL_S = 60.0  # on the clock, for what waits instead of computing
LINE_BYTES = 1 << 18  # more than the program says of one comparison
READY = "ready"


def compare(
    rule: str, comparisons: Sequence[Mapping[str, Any]], modules: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the result of each comparison by the program; see scorer.py. `modules` are files and folders that it needs besides.

    A comparison that ends the program has a fault; a program goes on after it. Raises RewardError if the program does not start.
    """
    results: list[dict[str, Any]] = []
    while len(results) < len(comparisons):
        left = comparisons[len(results) :]
        done = _run(rule, left, modules)
        # What a new program begins with is to blame for its end; what comes later is compared again, by a new program.
        results += done or [{"fault": "it ended the program that scores"}]
    return results


def _run(rule: str, comparisons: Sequence[Mapping[str, Any]], modules: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the output of the program until it ended."""
    lines = "".join(f"{json.dumps(each)}\n" for each in comparisons)
    command = [*confined_program(PROGRAM, modules), rule, str(CPU_S), str(WALL_S)]
    limit_s, limit_bytes = START_S + (WALL_S + 1) * len(comparisons), LINE_BYTES * (len(comparisons) + 1)
    done = exchange(command, lines.encode(), limit_s, limit_bytes)
    output = done.output.decode(errors="replace").splitlines()
    if output[:1] != [READY]:
        error = (done.errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:300]
        reason = f"it took longer than {limit_s:g} s" if done.late else error
        raise RewardError(f"the program that compares answers by the rule {rule!r} does not start: {reason}")
    return [_object(line) for line in output[1 : len(comparisons) + 1]]


def _object(line: str) -> dict[str, Any]:
    try:
        return dict(json_value(line))
    except (ValueError, TypeError, RecursionError):
        return {"fault": "its program said what is no object"}
