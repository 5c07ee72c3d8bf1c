"""Whether an engine could be reached all the time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from nbrl.tasks.rollout import samplers
from nbrl.tasks.rollout.samplers import EngineProbe
from tests.tasks.test_samplers import unused_port

BACK = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "EVERY_S", 0.02)
    monkeypatch.setattr(samplers, "LIMIT_S", 0.2)


class Engine:
    """Answers, or while it is `silent` takes requests and says nothing."""

    def __init__(self, silent: bool = False) -> None:
        self.silent, self.asked = silent, 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            self.asked += 1
            if not self.silent:
                writer.write(BACK)
        writer.close()


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[EngineProbe]:
    async with aiohttp.ClientSession() as session:
        watch = EngineProbe(session, lambda: url)
        task = asyncio.create_task(watch.watch())
        yield watch
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def serve(engine: Engine) -> tuple[asyncio.Server, str]:
    server = await asyncio.start_server(engine.answer, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 what changes belongs to the code under test
            await asyncio.sleep(0.01)


def test_an_engine_that_always_answers_was_never_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "LIMIT_S", 30)

    async def run() -> None:
        engine, began = Engine(), time.monotonic()
        server, url = await serve(engine)
        async with watched(url) as watch:
            await until(lambda: engine.asked >= 5)
            assert watch.missed_s(began) == 0
        server.close()

    asyncio.run(run())


def test_an_engine_that_was_silent_is_missed_by_the_episodes_of_that_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        engine, before = Engine(silent=True), time.monotonic()
        server, url = await serve(engine)
        async with watched(url) as watch:
            await until(lambda: watch.missed_s(before) > 0)
            monkeypatch.setattr(samplers, "LIMIT_S", 30)
            engine.silent, seen = False, engine.asked
            await until(lambda: engine.asked >= seen + 2)  # the first of them may have been asked while it was silent
            after = time.monotonic()
            await until(lambda: engine.asked >= seen + 5)
            assert watch.missed_s(before) > 0.2
            assert watch.missed_s(after) == 0
        server.close()

    asyncio.run(run())


def test_an_engine_where_nobody_listens_is_missed() -> None:
    async def run() -> None:
        began = time.monotonic()
        async with watched(f"http://127.0.0.1:{unused_port()}") as watch:
            await until(lambda: watch.missed_s(began) > 0)

    asyncio.run(run())


def test_a_runner_that_stood_still_itself_counts_like_an_engine_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        watch, asked = EngineProbe(nobody, lambda: ""), 0

        async def answers_after_the_process_stood_still() -> bool:
            nonlocal asked
            asked += 1
            if asked == 3:
                time.sleep(0.5)  # noqa: ASYNC251
            return True

        monkeypatch.setattr(watch, "_asked", answers_after_the_process_stood_still)
        task, began = asyncio.create_task(watch.watch()), time.monotonic()
        await until(lambda: asked > 3)
        task.cancel()
        assert watch.missed_s(began) >= 0.5

    nobody: Any = None
    asyncio.run(run())
