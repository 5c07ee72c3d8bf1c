"""Whatever a cell does to its notepad, its context or its report, the host goes on, within its limits."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.context.notepad import MAX_CHARS, MAX_ITEMS, REPORT_CHARS, State, read_state
from nbrl.agent.context.view import MAX_REQUESTS, read_requests
from nbrl.agent.episode import Episode
from nbrl.agent.kernel import CellResult
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.trajectory import Status, Trajectory, to_table
from tests.agent.context_lab import TASK, TOKENIZER, Asked, act, play, settings

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "x" * 50_000, "drop", "summarise", "todo", "<|im_end|>"]),
)
KEYS = st.sampled_from(["answer", "notepad", "requests", "plan", "facts", "draft", "text", "state", "do", "cells", "other"])
JSON = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(KEYS, inner, max_size=5)), max_leaves=25
)
CELLS = st.one_of(st.integers(-3, 12), st.booleans(), st.integers(-(2**70), 2**70), st.none())
REQUEST = st.fixed_dictionaries(
    {"do": st.sampled_from(["drop", "summarise", "pin", "unpin", "recall", "exec"]), "cells": st.lists(CELLS, max_size=4)},
    optional={"text": SCALARS, "more": SCALARS},
)
TEXT = st.lists(st.sampled_from(["a b", "é", "\n", "\ud800", "\udfff", "😀", "<|im_end|>"]), max_size=9).map("".join)
VALID = st.fixed_dictionaries(
    {
        "do": st.sampled_from(["drop", "summarise", "pin", "recall"]),
        "cells": st.lists(st.integers(-1, 7), min_size=1, max_size=3),
    },
    optional={"text": TEXT},
)
ITEM = st.fixed_dictionaries({"text": TEXT}, optional={"state": st.sampled_from(["todo", "doing", "done"])})
NOTEPAD = st.fixed_dictionaries(
    {}, optional={"plan": st.lists(ITEM, max_size=3), "facts": st.lists(TEXT, max_size=3), "draft": TEXT}
)
REPORT = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"notepad": NOTEPAD, "requests": st.lists(st.one_of(VALID, REQUEST, JSON), max_size=6)},
        optional={"answer": st.one_of(st.none(), TEXT)},
    ),
)


class Forger:
    """A kernel that reports what it likes."""

    def __init__(self, reports: list[Any]) -> None:
        self._reports = reports

    async def execute(self, code: str, timeout: float, message: str = "") -> CellResult:
        json.loads(message)
        return CellResult("ok", [], self._reports.pop() if self._reports else None)


@given(st.lists(REPORT, max_size=6), st.sampled_from(["none", "hard", "soft"]))
def test_any_report_is_data(reports: list[Any], trim: str) -> None:
    policy = Asked([act("pass")])
    chosen = settings(trim=trim, max_steps=7, context_tokens=700)

    async def run() -> Trajectory:
        return await Episode(TASK, policy, Forger(list(reports)), Toolbox([]), TOKENIZER, chosen).run()

    trajectory = asyncio.run(run())
    assert trajectory.status in (Status.STEP_LIMIT, Status.TOKEN_LIMIT, Status.ANSWERED)
    assert all(len(prompt.token_ids) + room <= 700 for prompt, room in zip(policy.prompts, policy.rooms, strict=True))
    to_table([trajectory])


@given(REPORT)
def test_what_is_read_of_a_report_is_small(reported: Any) -> None:
    state = read_state(reported, State())
    state.model_dump_json()
    assert len(state.notepad.render()) <= REPORT_CHARS + 2 * MAX_ITEMS * 8 + MAX_CHARS
    assert all(len(request.text) <= MAX_CHARS + 1 for request in read_requests(reported))


def test_a_flood_of_requests_is_capped() -> None:
    one = {"do": "drop", "cells": [0]}
    assert len(read_requests({"requests": [one] * 10**5})) == MAX_REQUESTS
    assert read_requests({"requests": [{"do": "drop", "cells": list(range(10**5))}]}) == []
    for cell in (True, -1, 10**4000):
        assert read_requests({"requests": [{"do": "drop", "cells": [cell]}]}) == []


def test_values_nested_too_deep_or_in_circles_are_no_report() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    circle: dict[str, Any] = {"answer": None}
    circle["notepad"] = circle
    before = State()
    for value in (deep, circle, {"requests": deep}, {"notepad": {"plan": deep}}):
        read_requests(value)
        assert read_state(value, before).answer is None
    while deep:
        deep = deep.pop()


ATTACKS = st.sampled_from(
    [
        "del notepad",
        "del context, history",
        "del _nbrl_state",
        "_nbrl_state = 5",
        "notepad = context = history = None",
        "notepad.plan = notepad",
        "notepad.plan.append(notepad.plan)",
        "notepad.plan = [{'text': float('nan'), 'state': []}, {'done': True}, 3, None]",
        "notepad.facts = 'abc'",
        "notepad.facts = [b'x', {1: 2}, object(), '\\ud800']",
        "notepad.facts = ['\\U0001f600' * 10**5] * 10**3",
        "notepad.draft = float('inf')",
        "notepad.draft = type('T', (), {'__str__': lambda self: 1 / 0})()",
        "notepad.__class__ = type('N', (), {})",
        "del notepad.plan",
        "_nbrl_state.requests = [{'do': 'drop', 'cells': [-1, True, 10**30, 0]}] * 1000",
        "_nbrl_state.requests = 7",
        "_nbrl_state.requests.append(_nbrl_state.requests)",
        "_nbrl_state.receive = None",
        "_nbrl_state.now = -5\ncontext.drop(0)",
        "_nbrl_state.view = [None]\nprint(context)",
        "_nbrl_state._repr_json_ = lambda: {'answer': [1], 'notepad': float('nan')}",
        "history._cells = {}\nprint(history[-1])",
        "_nbrl.clear()",
        "context.drop(0)",
        "context.recall(0, 1)",
        "context.summarise(range(3), '\\ud800' * 9)",
        "context.pin(*range(5))",
        "notepad.add_facts('f' * 500)",
        "print('o' * 200)",
    ]
)


@given(st.lists(ATTACKS, min_size=1, max_size=6), st.sampled_from(["hard", "soft"]))
def test_no_sequence_of_cells_breaks_the_loop(cells: list[str], trim: str) -> None:
    policy = Asked([act(cell) for cell in cells])
    trajectory = play(policy, settings(trim=trim, max_steps=len(cells) + 2))
    assert trajectory.status is Status.STEP_LIMIT
    assert all(len(prompt.token_ids) + room <= 900 for prompt, room in zip(policy.prompts, policy.rooms, strict=True))
    to_table([trajectory])
