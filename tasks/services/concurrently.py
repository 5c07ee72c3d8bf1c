"""Awaits several things at once, of which none outlives another's failure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")
LOOK_S = 1.0


async def all_of(several: Iterable[Awaitable[T]]) -> list[T]:
    """Await all concurrently; if one fails, cancel and await the others, and raise the first error unchanged."""
    tasks = [asyncio.ensure_future(each) for each in several]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def both(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Await as `all_of` does, two of different types."""
    either: list[Awaitable[Any]] = [first, second]
    one, other = await all_of(either)
    return one, other


async def beside(work: Awaitable[T], others: Collection[asyncio.Task[Any]], ends: Callable[[BaseException], bool]) -> T:
    """Return the result of the work. Cancels it and raises the error of the first of the others that fails meanwhile, if that
    `ends` the work; other errors of theirs are raised where they are awaited.
    """
    mine = asyncio.ensure_future(work)
    try:
        while not mine.done():
            running = [each for each in others if not each.done()]
            await asyncio.wait([mine, *running], return_when=asyncio.FIRST_COMPLETED)
            for each in others:
                if each.done() and (each.cancelled() or ((error := each.exception()) is not None and ends(error))):
                    each.result()
        return mine.result()
    finally:
        mine.cancel()
        await asyncio.gather(mine, return_exceptions=True)


async def settled(several: Iterable[asyncio.Task[Any]]) -> None:
    """Return when all have ended, in whatever way."""
    if running := [each for each in several if not each.done()]:
        await asyncio.wait(running)


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and return when it has ended in whatever way."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def succeeded(task: asyncio.Task[Any]) -> bool:
    """Return whether a task is done, and with a result."""
    return task.done() and not task.cancelled() and task.exception() is None


def raised(task: asyncio.Task[Any]) -> None:
    """Raise the error of a task that failed. Does nothing for others."""
    if task.done():
        task.result()


@asynccontextmanager
async def errors_wait_for(task: asyncio.Task[Any], limit_s: float, which: Callable[[Exception], bool]) -> AsyncIterator[None]:
    """Delay an error of the body, one of those `which` wait, until the task has ended in any way, or by `limit_s`."""
    try:
        yield
    except Exception as error:
        if which(error):
            await asyncio.wait([task], timeout=limit_s)
        raise


async def reported_if_slow(work: Awaitable[T], limit_s: float, report: Callable[[], None]) -> T:
    """Await the work; `report` is called if it takes longer than `limit_s` seconds."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=limit_s)
        if not task.done():
            report()
        return await task
    finally:
        task.cancel()


@asynccontextmanager
async def watched(*checks: Callable[[], None]) -> AsyncIterator[None]:
    """Cancel the body when a check raises, and raise that error in its place."""
    body = asyncio.current_task()
    assert body is not None
    failures: list[Exception] = []

    async def watch() -> None:
        while not failures:
            await asyncio.sleep(LOOK_S)
            try:
                for check in checks:
                    check()
            except Exception as error:
                failures.append(error)
                body.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if failures and not body.uncancel():  # else it was cancelled from outside too
            raise failures[0] from None
        raise
    finally:
        watching.cancel()
