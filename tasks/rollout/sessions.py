"""The sessions that the environments of a runner give to its trajectories."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from nbrl.agent.errors import SessionError
from nbrl.agent.tools.sessions import Asked, GuardedSession, Sessions, SessionSource


class SessionPool:
    """The sessions of several environments; those of each are opened at the first need, and all are closed by `close`."""

    def __init__(self, sources: Mapping[str, SessionSource], limit_s: float) -> None:
        """Make a pool. `limit_s` bounds what a session is asked besides calls."""
        self._sources, self._limit_s = sources, limit_s
        self._opened: dict[str, asyncio.Task[Sessions]] = {}

    @asynccontextmanager
    async def session(self, asked: Asked | None, seed: int) -> AsyncIterator[GuardedSession | None]:
        """Yield the session of a question, which ends with the block; None where its environment has none.

        Raises SessionError where it cannot start: an infrastructure fault.
        """
        if asked is None:
            yield None
            return
        session = await GuardedSession.start(await self._of(asked.environment), asked, seed, self._limit_s)
        try:
            yield session
        finally:
            await session.close()

    async def _of(self, environment: str) -> Sessions:
        """Return the sessions of an environment. All that wait for them while they open learn it together where that fails."""
        if environment not in self._opened:
            self._opened[environment] = asyncio.create_task(self._open(environment))
        opened = self._opened[environment]
        try:
            return await asyncio.shield(opened)
        except SessionError:
            if self._opened.get(environment) is opened:
                del self._opened[environment]  # the next trajectory tries again
            raise

    async def _open(self, environment: str) -> Sessions:
        try:
            return await self._sources[environment].open()
        except Exception as error:  # of a user's code, or of a program that does not start
            raise SessionError(f"{environment}: its sessions cannot be opened: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """End all that was opened."""
        opened, self._opened = [*self._opened.values()], {}
        for task in opened:
            if not task.done():
                task.cancel()
        sessions = await asyncio.gather(*opened, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in sessions if not isinstance(each, BaseException)), return_exceptions=True)
