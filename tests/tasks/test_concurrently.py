"""Work beside other work, of which none outlives another's failure."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nbrl.tasks.errors import BrokenInvariantError, RolloutError
from nbrl.tasks.services.concurrently import all_of, beside, ended, errors_wait_for, raised, settled, succeeded
from nbrl.tasks.services.progress import Busy
from nbrl.tasks.services.restarts import curable


async def fail(error: Exception) -> None:
    raise error


async def ends(error: BaseException) -> str:
    """How work ended beside which something failed with this error."""
    failing = asyncio.create_task(fail(error))  # type: ignore[arg-type]
    left = asyncio.Event()

    async def work() -> str:
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return "done"
        finally:
            left.set()

    try:
        return await beside(work(), [failing], lambda each: not curable(each))
    finally:
        assert left.is_set()


def test_work_goes_on_beside_a_fault_that_new_services_cure() -> None:
    assert asyncio.run(ends(RolloutError("the runners failed"))) == "done"


def test_work_ends_at_once_beside_a_broken_invariant() -> None:
    with pytest.raises(BrokenInvariantError, match="wrong weights"):
        asyncio.run(ends(BrokenInvariantError("wrong weights")))


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_runs_beside_another_is_gone_when_that_failed(cancelled: bool) -> None:
    gone = list[str]()

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gone.append(name)

    async def run() -> None:
        whole = asyncio.create_task(_all([forever("one"), forever("two"), *([] if cancelled else [late(fail)])]))
        await asyncio.sleep(0)
        if cancelled:
            whole.cancel()
        await whole

    async def late(failing: Callable[[Exception], Awaitable[None]]) -> None:
        await asyncio.sleep(0)
        await failing(RolloutError("too many"))

    with pytest.raises(asyncio.CancelledError if cancelled else RolloutError):
        asyncio.run(run())
    assert sorted(gone) == ["one", "two"]


async def _all(several: list[Awaitable[None]]) -> None:
    await all_of(several)


def test_what_has_settled_may_have_failed() -> None:
    async def run() -> list[bool]:
        tasks = [asyncio.create_task(fail(RolloutError("no"))), asyncio.create_task(asyncio.sleep(0))]
        await settled(tasks)
        await settled([])
        return [task.done() and task.exception() is None for task in tasks]

    assert asyncio.run(run()) == [False, True]


def test_busy_counts_the_time_in_which_anything_is_in_progress_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("nbrl.tasks.services.progress.time.monotonic", lambda: now[0])
    busy = Busy()
    with busy:
        now[0] = 1.0
        with busy:
            now[0] = 3.0
        assert busy.seconds == 3.0
    now[0] = 10.0
    assert busy.seconds == 3.0


def test_a_task_that_ends_is_seen_to_have_succeeded_or_raises_its_error() -> None:
    async def work() -> None:
        good, bad = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(fail(RolloutError("gone")))
        waiting = asyncio.create_task(asyncio.Event().wait())
        assert not succeeded(good)
        raised(bad)
        await settled([good, bad])
        assert succeeded(good)
        assert not succeeded(bad)
        with pytest.raises(RolloutError, match="gone"):
            raised(bad)
        await ended(waiting)
        await ended(bad)
        assert waiting.cancelled()
        assert not succeeded(waiting)

    asyncio.run(work())


@pytest.mark.parametrize("loads", [True, False])
def test_an_error_beside_something_that_loads_is_raised_once_that_is_decided(loads: bool) -> None:
    decided: list[bool] = []

    async def load() -> None:
        await asyncio.sleep(0.05)
        if not loads:
            raise RolloutError("it does not load")

    async def fails_meanwhile() -> None:
        loading = asyncio.create_task(load())
        loading.add_done_callback(lambda done: decided.append(succeeded(done)))
        async with errors_wait_for(loading, 60, curable):
            raise RolloutError("the runners failed")

    with pytest.raises(RolloutError, match="the runners failed"):
        asyncio.run(fails_meanwhile())
    assert decided == [loads]


def test_an_error_beside_something_that_loads_for_ever_is_raised_in_time() -> None:
    async def fails_meanwhile() -> None:
        loading = asyncio.create_task(asyncio.sleep(600))
        async with errors_wait_for(loading, 0.05, curable):
            raise RolloutError("the runners failed")

    with pytest.raises(RolloutError, match="the runners failed"):
        asyncio.run(fails_meanwhile())


def test_an_error_that_nothing_cures_does_not_wait_for_what_loads() -> None:
    async def fails_meanwhile() -> None:
        loading = asyncio.create_task(asyncio.sleep(600))
        async with errors_wait_for(loading, 600, curable):
            raise BrokenInvariantError("a reward changed")

    async def bounded() -> None:
        await asyncio.wait_for(fails_meanwhile(), 60)

    with pytest.raises(BrokenInvariantError, match="a reward changed"):
        asyncio.run(bounded())
