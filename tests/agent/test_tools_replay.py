"""Recorded calls, served again: the same cells see the same, without the tools."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nbrl.agent.errors import ToolError
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.tools.base import GIVEN_UP, Toolbox
from nbrl.agent.tools.functions import tool
from nbrl.agent.tools.replay import Replay, ReplayError
from nbrl.agent.trajectory import Status, Step, ToolCall, Trajectory, from_table, to_table

COUNTED: list[int] = []


@tool
def count(step: int = 1) -> dict[str, int]:
    """Counts on."""
    COUNTED.append(step)
    return {"count": sum(COUNTED)}


@tool
async def slow() -> None:
    """Never answers."""
    await asyncio.sleep(60)


@tool
async def late() -> None:
    """Fails by its time."""
    raise TimeoutError("nobody answered")


CELLS = [
    "print(count(), count(step=2), count())",
    "for bad in ('x', None):\n    try: count(bad)\n    except Exception as error: print(type(error).__name__, error)",
    "try: late()\nexcept Exception as error: print(type(error).__name__, error)",
]


def play(toolbox: Toolbox, cells: Sequence[str]) -> tuple[list[str], Trajectory]:
    async def work() -> tuple[list[str], Trajectory]:
        kernel = InlineKernel(prelude(toolbox.tools.values()), toolbox.call)
        said, steps = [], []
        for code in cells:
            result = await kernel.execute(code, 10.0)
            said.append("".join(output.text for output in result.outputs))
            steps.append(Step(code=code, tool_calls=toolbox.take_calls(), unrecorded_calls=toolbox.take_unrecorded()))
        return said, trajectory(*steps)

    return asyncio.run(work())


def trajectory(*steps: Step) -> Trajectory:
    return Trajectory(
        id="q-0",
        group="q",
        sample=0,
        question="?",
        ability="qa",
        status=Status.ANSWERED,
        answer="1",
        nodes=[],
        steps=list(steps),
    )


def recorded(name: str, arguments: str, result: str, ok: bool = True, complete: bool = True) -> Trajectory:
    call = ToolCall(name=name, arguments=arguments, result=result, ok=ok, complete=complete, seconds=0.1)
    return trajectory(Step(tool_calls=[call]))


def test_a_trajectory_runs_again_with_the_same_answers_and_without_its_tools() -> None:
    COUNTED.clear()
    said, first = play(Toolbox([count, late]), CELLS)
    assert said[0] == "{'count': 1} {'count': 3} {'count': 4}\n"
    assert "does not fit" in said[1]
    (stored,) = from_table(to_table([first]))
    calls = len(COUNTED)
    again, second = play(Replay([stored], [count, late]), CELLS)
    assert again == said
    assert len(COUNTED) == calls
    assert [[(c.name, c.arguments, c.result, c.ok) for c in step.tool_calls] for step in second.steps] == [
        [(c.name, c.arguments, c.result, c.ok) for c in step.tool_calls] for step in first.steps
    ]


def test_a_tool_known_by_its_calls_only_can_be_replayed_too() -> None:
    said, _ = play(Replay([recorded("look", '{"query": "a", "the-limit": 2}', '"found"')]), ["print(look('a', 2))"])
    assert said == ["found\n"]


def test_answers_of_several_trajectories_are_served_in_their_order() -> None:
    many = [recorded("look", '{"b": 1, "a": 2}', f'"{n}"') for n in range(3)]
    toolbox = Replay(many)

    async def ask(arguments: dict[str, Any]) -> Any:
        return await toolbox.call("look", arguments)

    assert [asyncio.run(ask({"a": 2, "b": 1})) for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(ReplayError, match="less often than it is called"):
        asyncio.run(ask({"a": 2, "b": 1}))
    with pytest.raises(ReplayError, match="was never recorded whole with these arguments"):
        asyncio.run(ask({"a": 3, "b": 1}))


def test_a_call_that_was_never_recorded_is_an_error_in_the_cell() -> None:
    said, _ = play(Replay([], [count]), ["try: count()\nexcept Exception as error: print(error)\nprint('on')"])
    assert said == ["count was never recorded whole with these arguments; a replay asks no service\non\n"]


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (recorded("look", "{}", '"cut', complete=False), "never recorded whole"),
        (recorded("look", '{"a": "cut', '"x"', complete=False), "never recorded whole"),
        (recorded("look", "{}", f'"{GIVEN_UP}"', ok=False), "its cell gave up on it"),
    ],
)
def test_what_was_not_recorded_whole_is_not_served(one: Trajectory, reason: str) -> None:
    with pytest.raises(ReplayError, match=reason):
        asyncio.run(Replay([one]).call("look", {}))


def test_a_cell_that_gives_up_is_recorded_as_that() -> None:
    async def work() -> list[ToolCall]:
        toolbox = Toolbox([slow])
        waiting = asyncio.create_task(toolbox.call("slow", {}))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return toolbox.take_calls()

    (call,) = asyncio.run(work())
    assert (call.ok, call.result) == (False, f'"{GIVEN_UP}"')


def test_a_recorded_name_that_python_cannot_bear_is_refused() -> None:
    with pytest.raises(ToolError, match="cannot be a tool's name"):
        prelude(Replay([recorded("os; evil", "{}", "1")]).tools.values())
