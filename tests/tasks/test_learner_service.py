"""A learner that has ended is replaced, and the order that it did not survive is carried out by the next."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nbrl.tasks.errors import LearnerEndedError, LearnerUnplacedError, UpdateError
from nbrl.tasks.services.learner import LearnerService
from nbrl.tasks.services.restarts import curable

ORDER = SimpleNamespace(repeats=[])
ENDED = LearnerEndedError("the learner has ended: rank 0: killed")


class Handle:
    """A learner without processes: `answer` is the end of every order, None if there is none, `up` that of its start."""

    def __init__(self, answer: Exception | str | None, up: Exception | None = None) -> None:
        self.answer, self.up, self.stopped = answer, up, False

    async def ready(self) -> None:
        if isinstance(self.up, TimeoutError):
            await asyncio.Event().wait()
        if self.up is not None:
            raise self.up

    async def update(self, order: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer, order

    def stop(self, timeout: float) -> str:
        self.stopped = True
        return ""


def updated(*handles: Handle, limit_s: float = 60.0) -> tuple[Any, list[str]]:
    """The result of an order to learners that are started one after the other, and what was said."""
    said: list[str] = []
    given: Any = handles
    order: Any = ORDER

    async def work() -> Any:
        service = LearnerService(lambda number: given[number], said.append, limit_s)
        await service.ready()
        return await service.update(order)

    return asyncio.run(work()), said


def test_the_order_goes_to_the_next_learner_and_one_line_tells_of_it() -> None:
    first = Handle(ENDED)
    assert updated(first, Handle("done")) == (
        ("done", ORDER),
        ["the learner has ended: rank 0: killed; started again in 0 s, its order is carried out again"],
    )
    assert first.stopped


def test_a_learner_whose_ranks_find_no_machines_ends_the_run_at_once() -> None:
    handles = [Handle(ENDED), Handle("done", up=LearnerUnplacedError("no room")), Handle("done")]
    with pytest.raises(LearnerUnplacedError, match="no room"):
        updated(*handles)
    assert not handles[2].stopped


def test_a_refused_order_is_not_repeated() -> None:
    with pytest.raises(UpdateError, match="not a finished checkpoint"):
        updated(Handle(UpdateError("not a finished checkpoint")), Handle("done"))


def test_a_learner_that_does_not_get_ready_is_replaced_too() -> None:
    result, said = updated(Handle(ENDED), Handle("", up=ENDED), Handle("done"))
    assert (result[0], len(said)) == ("done", 1)


def test_learners_that_end_too_often_end_the_run() -> None:
    with pytest.raises(LearnerEndedError, match="rank 0: killed, and no more than 3 restarts in 10 minutes are made"):
        updated(*(Handle(ENDED) for _ in range(4)))


def test_the_first_learner_must_get_ready() -> None:
    with pytest.raises(LearnerEndedError):
        updated(Handle("", up=ENDED), Handle("done"))


def test_a_learner_that_hangs_while_it_is_started_again_is_replaced_too() -> None:
    first = Handle(ENDED)
    result, _ = updated(first, Handle("", up=TimeoutError()), Handle("done"), limit_s=0.05)
    assert result[0] == "done"


def test_an_order_waits_until_the_first_learner_is_ready_and_does_not_replace_one_that_never_is() -> None:
    given: Any = [Handle("done", up=ENDED), Handle("done")]
    order: Any = ORDER

    async def work() -> None:
        await LearnerService(lambda number: given[number], print, 60.0).update(order)

    with pytest.raises(LearnerEndedError, match="rank 0: killed"):
        asyncio.run(work())
    assert not given[0].stopped


def test_a_learner_that_gives_no_answer_ends_with_all_services_which_are_started_again() -> None:
    first, second = Handle(None), Handle("done")
    with pytest.raises(LearnerEndedError, match=r"longer than 0\.01 s \(update\.timeout_s\): does a rank hang") as raised:
        updated(first, second, limit_s=0.01)
    assert curable(raised.value)
