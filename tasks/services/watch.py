"""Ends work as soon as a service that it needs has ended, however long the work would wait for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LOOK_S = 1.0


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
