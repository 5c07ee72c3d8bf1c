"""The queue: who gets which rows, and what becomes of those of a runner that is gone."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.trajectory import Status, Trajectory
from nbrl.tasks.rollout import work_queue as module
from nbrl.tasks.rollout.chunks import index_of
from nbrl.tasks.rollout.plan import EngineAddress
from nbrl.tasks.rollout.work_queue import SILENT_S, WorkQueue

HERE, THERE = [EngineAddress("here")], [EngineAddress("there")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": str(number)} for number in range(count)]


def index(part: str, *ids: str, status: Status = Status.ANSWERED) -> pa.Table:
    made = [
        Trajectory(id=each, group="g", sample=0, question="", ability="a", status=status, answer="", nodes=[], steps=[])
        for each in ids
    ]
    return index_of(made, part, part)


async def taken(queue: WorkQueue, number: int, free: int = 100, life: str = "") -> list[str]:
    return [row["id"] for row in (await queue.take("r", number, life or f"life {number}", free)).rows]


async def opened(queue: WorkQueue, count: int, runners: int, doubtful: bool = False) -> None:
    for number in range(runners):
        await queue.register_runner(number, f"life {number}")
    await queue.open("r", count, HERE, doubtful)
    await queue.add("r", rows(count))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGN_S", 0.0)


def test_runners_that_live_share_what_is_there_and_one_that_is_early_does_not_get_all() -> None:
    async def work() -> None:
        queue = WorkQueue()
        await opened(queue, 10, 2)
        assert await taken(queue, 0) == list("01234")
        assert await taken(queue, 0) == []
        assert await taken(queue, 1, free=3) == list("567")
        assert await taken(queue, 1) == list("89")

    asyncio.run(work())


def test_what_a_silent_runner_held_is_looked_for_and_then_given_to_others() -> None:
    async def work() -> None:
        clock = Clock()
        queue = WorkQueue(clock)
        await opened(queue, 4, 2)
        assert await taken(queue, 0) == list("01")
        assert await taken(queue, 1) == list("23")
        clock.now = SILENT_S + 1
        assert await taken(queue, 1) == []
        seen = await queue.look()
        assert (seen.silent, seen.living, seen.doubtful) == ((0,), (1,), ("0", "1"))
        assert (await queue.look()).silent == ()  # it is told once
        await queue.settle("r", seen.doubtful, index("found", "1"))
        assert await taken(queue, 1) == ["0"]
        await queue.finish("r", 0, "life 0", index("late", "0"))  # it was only slow, and what it brings first counts
        await queue.finish("r", 1, "life 1", index("part", "0", "2", "3"))
        assert (await queue.look()).finished == 4
        await asyncio.wait_for(queue.completed("r"), 1)
        found = await queue.index("r", list("0123"))
        assert found["part"].to_pylist() == ["late", "found", "part", "part"]
        assert found["row"].to_pylist() == [0, 0, 1, 2]

    asyncio.run(work())


def test_the_only_runner_keeps_its_rows_however_long_it_is_silent() -> None:
    async def work() -> None:
        clock = Clock()
        queue = WorkQueue(clock)
        await opened(queue, 2, 1)
        await taken(queue, 0)
        clock.now = SILENT_S + 1
        assert (await queue.look()).doubtful == ()
        await queue.finish("r", 0, "life 0", index("part", "0", "1"))
        await asyncio.wait_for(queue.completed("r"), 1)

    asyncio.run(work())


def test_a_runner_that_lives_anew_starts_with_nothing_and_its_old_life_gets_nothing_more() -> None:
    async def work() -> None:
        queue = WorkQueue()
        await opened(queue, 2, 1)
        assert await taken(queue, 0) == list("01")
        await queue.register_runner(0, "another life")
        seen = await queue.look()
        assert (seen.restarts, seen.doubtful) == (1, ("0", "1"))
        assert (await queue.take("r", 0, "life 0", 9)).over
        await queue.settle("r", seen.doubtful, index("none"))
        assert await taken(queue, 0, life="another life") == list("01")
        assert (await queue.look()).restarts == 0

    asyncio.run(work())


def test_what_an_earlier_process_left_is_not_run_again_but_what_failed_is() -> None:
    async def work() -> None:
        queue = WorkQueue()
        await opened(queue, 3, 1, doubtful=True)
        assert await taken(queue, 0) == []
        left = pa.concat_tables([index("a", "0", "another"), index("b", "1", status=Status.FAILED)])
        await queue.settle("r", (await queue.look()).doubtful, left)
        assert await taken(queue, 0) == list("12")
        await queue.finish("r", 0, "life 0", index("c", "1", "2", status=Status.FAILED))
        assert (await queue.take("r", 0, "life 0", 9)).over
        assert (await queue.index("r", list("210")))["id"].to_pylist() == list("210")

    asyncio.run(work())


def test_a_runner_that_begins_once_more_holds_nothing() -> None:
    async def work() -> None:
        queue = WorkQueue()
        await opened(queue, 2, 1)
        assert await taken(queue, 0) == list("01")
        await queue.begin("r", 0, "life 0")
        seen = await queue.look()
        assert (seen.restarts, seen.doubtful) == (0, ("0", "1"))
        await queue.settle("r", seen.doubtful, index("none"))
        assert await taken(queue, 0) == list("01")

    asyncio.run(work())


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMEOUT])
def test_what_fails_after_it_was_given_to_another_is_left_to_that_one(status: Status) -> None:
    async def work() -> None:
        clock = Clock()
        queue = WorkQueue(clock)
        await opened(queue, 2, 2)
        assert await taken(queue, 0) == ["0"]
        clock.now = SILENT_S + 1
        assert await taken(queue, 1) == ["1"]
        await queue.settle("r", (await queue.look()).doubtful, index("none"))
        assert await taken(queue, 1) == ["0"]
        assert await queue.finish("r", 0, "life 0", index("late", "0", status=status)) == {"0"}
        assert (await queue.look()).finished == 0
        assert await queue.finish("r", 1, "life 1", index("part", "0", "1")) == set()
        found = await queue.index("r", list("01"))
        assert set(found["status"].to_pylist()) == {"answered"}

    asyncio.run(work())


def test_an_earlier_life_of_a_runner_neither_takes_rows_nor_counts_for_the_present_one() -> None:
    async def work() -> None:
        queue = WorkQueue()
        await opened(queue, 2, 1)
        assert await taken(queue, 0) == list("01")
        await queue.register_runner(0, "life 0'")
        await queue.settle("r", (await queue.look()).doubtful, index("none"))
        assert await taken(queue, 0, life="life 0'") == list("01")
        await queue.begin("r", 0, "life 0")
        assert await queue.finish("r", 0, "life 0", index("late", "0", status=Status.TIMEOUT)) == {"0"}
        seen = await queue.look()
        assert (seen.finished, seen.doubtful) == (0, ())
        assert await queue.finish("r", 0, "life 0", index("found", "0")) == set()  # what it did finish is welcome
        assert await queue.finish("r", 0, "life 0'", index("part", "1", status=Status.TIMEOUT)) == set()
        assert (await queue.look()).finished == 2

    asyncio.run(work())


def test_rows_may_come_in_blocks_and_once_more() -> None:
    async def work() -> None:
        queue = WorkQueue()
        await queue.register_runner(0, "life 0")
        await queue.open("r", 4, HERE, False)
        await queue.add("r", rows(2))
        assert await taken(queue, 0) == list("01")
        await queue.finish("r", 0, "life 0", index("part", "0", "1"))
        assert not (await queue.take("r", 0, "life 0", 9)).over
        await queue.add("r", rows(4)[2:])
        await queue.add("r", rows(4)[:2])  # a task of Ray Data that was tried again
        assert await taken(queue, 0) == list("23")
        assert (await queue.index("r", list("10")))["id"].to_pylist() == list("10")

    asyncio.run(work())


def test_a_round_that_is_gone_takes_and_gives_nothing() -> None:
    async def work() -> None:
        queue = WorkQueue()
        await opened(queue, 1, 1)
        await queue.open("next", 1, HERE, False)
        assert (await queue.take("r", 0, "life 0", 1)).over
        await queue.finish("r", 0, "life 0", index("part", "0"))
        await queue.settle("r", ["0"], index("part", "0"))
        await asyncio.wait_for(queue.completed("r"), 1)
        assert (await queue.look()).finished == 0
        assert len(await queue.index("r", ["0"])) == 0

    asyncio.run(work())


def test_a_runner_hears_where_the_engines_are() -> None:
    async def work() -> None:
        queue = WorkQueue()
        await opened(queue, 1, 1)
        assert (await queue.take("r", 0, "life 0", 1)).engines == HERE
        await queue.move(THERE)
        assert (await queue.take("r", 0, "life 0", 0)).engines == THERE

    asyncio.run(work())


Step = tuple[str, int]
STEPS = st.lists(st.tuples(st.sampled_from(["take", "finish", "half", "die", "silence", "wake"]), st.integers(0, 2)), max_size=60)


@given(st.integers(1, 12), STEPS)
def test_whatever_happens_every_row_is_finished_once(count: int, steps: Sequence[Step]) -> None:
    async def work() -> None:
        clock = Clock()
        queue, hands, lives, parts = WorkQueue(clock), [set[str]() for _ in range(3)], [0, 0, 0], 0
        await opened(queue, count, 3)

        async def act(what: str, number: int) -> None:
            nonlocal parts
            life = f"life {number}" + "'" * lives[number]
            match what:
                case "take":
                    hands[number] |= set(await taken(queue, number, 2, life))
                case "finish" | "half":
                    done = sorted(hands[number])[: 1 if what == "half" else None]
                    parts += 1
                    await queue.finish("r", number, life, index(f"part {parts}", *done))
                    hands[number] -= set(done)
                case "die":
                    hands[number], lives[number] = set(), lives[number] + 1
                    await queue.register_runner(number, life + "'")
                case "silence":
                    clock.now += SILENT_S / 2
                case "wake":
                    seen = await queue.look()
                    await queue.settle("r", seen.doubtful, index("none"))

        for step in steps:
            await act(*step)
        for _ in range(100):
            if (await queue.look()).finished == count:
                break
            for number in range(3):
                for what in ("take", "finish", "wake"):
                    await act(what, number)
        await asyncio.wait_for(queue.completed("r"), 1)
        ids = [str(number) for number in range(count)]
        assert (await queue.index("r", ids))["id"].to_pylist() == ids

    asyncio.run(work())


def test_a_stream_goes_on_with_rows_as_they_come_and_its_news_come_once() -> None:
    async def scenario() -> None:
        queue = WorkQueue()
        await queue.register_runner(0, "life 0")
        await queue.open("r", None, [], False)
        await queue.add("r", rows(2))
        assert await taken(queue, 0) == ["0", "1"]
        await queue.finish("r", 0, "life 0", index("a", "1"))
        assert (await queue.news("r"))["id"].to_pylist() == ["1"]
        await queue.add("r", rows(4)[2:])
        assert await taken(queue, 0) == ["2", "3"]
        await queue.finish("r", 0, "life 0", index("b", "0", "1", "2"))  # 1 comes a second time
        assert sorted((await queue.news("r"))["part"].to_pylist()) == ["b", "b", "b"]
        assert not len(await queue.news("other"))

    asyncio.run(scenario())


def test_a_pause_waits_for_what_has_begun_and_lets_nothing_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGN_S", 0.05)

    async def scenario() -> None:
        queue = WorkQueue()
        await queue.register_runner(0, "life 0")
        await queue.open("r", None, [], False)
        await queue.add("r", rows(3))
        assert await taken(queue, 0, free=1) == ["0"]
        assert not await queue.pause("r")
        assert await taken(queue, 0) == []
        await queue.finish("r", 0, "life 0", index("a", "0"))
        assert await queue.pause("r")
        await queue.resume("r")
        assert await taken(queue, 0) == ["1", "2"]

    asyncio.run(scenario())


def test_a_trajectory_with_more_updates_in_its_middle_than_may_be_is_run_again() -> None:
    def sampled(part: str, number: str, *versions: str) -> pa.Table:
        made = index(part, number)
        return made.set_column(made.column_names.index("versions"), "versions", pa.array([versions], pa.list_(pa.string())))

    async def scenario() -> None:
        clock = Clock()
        queue = WorkQueue(clock)
        for number in range(2):
            await queue.register_runner(number, f"life {number}")
        await queue.open("r", None, [], False, 0)
        await queue.add("r", rows(2))
        assert await taken(queue, 0, free=1) == ["0"]
        assert await taken(queue, 1, free=1) == ["1"]
        assert await queue.finish("r", 1, "life 1", sampled("a", "1", "0", "1")) == {"1"}  # it still had the row
        assert await taken(queue, 1, free=1) == ["1"]
        await queue.finish("r", 1, "life 1", sampled("b", "1", "1"))
        clock.now = SILENT_S + 1
        await queue.take("r", 1, "life 1", 0)
        await queue.look()  # 0 gave no sign, and loses the row
        assert await queue.finish("r", 0, "life 0", sampled("c", "0", "0", "1")) == {"0"}
        await queue.settle("r", ["0"], sampled("c", "0", "0", "1"))
        assert await taken(queue, 1) == ["0"]
        await queue.finish("r", 1, "life 1", sampled("d", "0", "1"))
        assert (await queue.news("r"))["part"].to_pylist() == ["b", "d"]

    asyncio.run(scenario())
