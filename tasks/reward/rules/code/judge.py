"""Judges Python source by tests that it never sees: the source runs in one sandbox, the tests in another, the host relays calls.

The host reads no line of the answer's program: it passes them on, bounded in size, number and time. The verdict is the tests'.
"""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nbrl.infra.parse import json_value
from nbrl.tasks.reward.rules.code.channel import LOADED
from nbrl.tasks.reward.rules.code.program import WALL_S, Program
from nbrl.tasks.reward.rules.code.reference import Reference
from nbrl.tasks.reward.rules.code.values import ValueTooLargeError, message
from nbrl.tasks.reward.rules.judged import Judged

CALLS = 20_000  # of one comparison
VERDICT_S = 20.0  # for the tests to end once no more calls are answered
WORKERS = min(16, len(os.sched_getaffinity(0)))
WRONG = Judged(0.0, 0.0)
UNANSWERED = message({"failed": "the program that runs the answer has ended, or is out of time"})


def scores(rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Return the score of each row's `answer` by its `reference`. Raises RewardError if no sandbox starts."""
    with ThreadPoolExecutor(WORKERS) as workers:
        return list(workers.map(lambda row: judge(row["answer"], Reference.model_validate_json(row["reference"])), rows))


def judge(answer: str, reference: Reference) -> Judged:
    """Judge an answer: right if all tests pass; partly right is the share that does. A fault if the tests do not run."""
    try:
        loading = message({"setup": reference.setup, "answer": answer})
    except ValueTooLargeError:
        return WRONG
    with Program("answer_side.py") as answering, Program("tests_side.py") as testing:
        answering.starts()
        testing.starts()
        # Nothing of the answer has run when the tests make their first call.
        first = testing.ask(message(reference.model_dump()), time.monotonic() + WALL_S)
        if first is None:
            return Judged(0.0, 0.0, fault="its tests call nothing in time, or end their process")
        end = time.monotonic() + WALL_S
        sent = json_value(first)
        if "call" in sent and answering.ask(loading, end) != LOADED:
            return WRONG
        calls = 0
        while "call" in sent:
            calls += 1
            reply = answering.ask(message(sent), end) if calls <= CALLS else None
            verdict = testing.ask(reply or UNANSWERED, end + VERDICT_S)
            if verdict is None:  # they ended without a verdict, or are out of time: what the answer returned may have done it
                return WRONG
            sent = json_value(verdict)
    if "fault" in sent:
        return Judged(0.0, 0.0, fault=str(sent["fault"]))
    passed = sum(sent["passed"]) / len(reference.tests)
    return Judged(float(passed == 1.0), passed)
