"""Work ends when a service that it needs has ended."""

import asyncio

import pytest

from nbrl.infra.errors import ServerError
from nbrl.tasks.services import concurrently
from nbrl.tasks.services.concurrently import watched


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrently, "LOOK_S", 0.01)


def test_what_a_check_raises_ends_the_work_that_waits() -> None:
    def check() -> None:
        raise ServerError("Ray ended")

    async def work() -> None:
        async with watched(check):
            await asyncio.sleep(3600)

    with pytest.raises(ServerError, match="Ray ended"):
        asyncio.run(work())


def test_after_it_the_work_can_begin_anew() -> None:
    dead = [True]

    def check() -> None:
        if dead[0]:
            raise ServerError("Ray ended")

    async def work() -> str:
        try:
            async with watched(check):
                await asyncio.sleep(3600)
        except ServerError:
            dead[0] = False
        async with watched(check):
            await asyncio.sleep(0.05)
            return "done"

    assert asyncio.run(work()) == "done"


def test_a_cancelled_work_stays_cancelled() -> None:
    async def work() -> None:
        async with watched(lambda: None):
            await asyncio.sleep(3600)

    async def cancelled() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_an_error_of_the_work_stays_what_it_is() -> None:
    async def work() -> None:
        async with watched(lambda: None):
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(work())
