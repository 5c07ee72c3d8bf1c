"""Provides sessions with a server's program that no trajectory has used: some are started ahead, each serves one and is ended."""

import asyncio
from collections.abc import Callable

from nbrl.agent.tools.mcp.session import McpSession

STARTS = 8
"""Programs of one server that are started at once."""
AHEAD = 8
"""Most sessions that are started ahead."""


class SessionStock:
    """`new` makes a session that is opened once; `close` ends all.

    None is started ahead before one was missed. Each time that one is, one more is, up to `most`, unless the last such start is
    still under way: those that are missed at the same moment count once.
    """

    def __init__(self, new: Callable[[], McpSession], most: int = AHEAD) -> None:
        self._new, self._most, self._ahead = new, most, 0
        self._starts = asyncio.Semaphore(STARTS)
        self._ready: list[asyncio.Task[McpSession]] = []
        self._newest: asyncio.Task[McpSession] | None = None
        self._used: set[McpSession] = set()
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, session: McpSession) -> None:
        """Keep an open session that no trajectory has used."""

        async def opened() -> McpSession:
            return session

        self._ready.append(asyncio.create_task(opened()))

    async def take(self) -> McpSession:
        """Return an open session for one trajectory. Raises SessionError if it cannot be opened.

        One that was lost meanwhile is skipped, and so is one whose start failed earlier: the cause may be gone by now.
        """
        while True:
            done = next((task for task in self._ready if task.done()), None)
            if done is None and (self._newest is None or self._newest.done()):
                self._ahead = min(self._ahead + 1, self._most)
            chosen = done or (self._ready[0] if self._ready else asyncio.create_task(self._start()))
            if chosen in self._ready:
                self._ready.remove(chosen)
            self._refill()
            if done is not None and done.exception() is not None:
                continue
            try:
                session = await asyncio.shield(chosen)
            except asyncio.CancelledError:
                self._ready.insert(0, chosen)  # no trajectory has used it
                raise
            self._used.add(session)
            if session.alive:
                return session
            self.end(session)

    def end(self, session: McpSession) -> None:
        """End a session in the background."""
        self._used.discard(session)
        task = asyncio.create_task(session.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End every session, and return when all have ended."""
        ready, self._ready = self._ready, []
        for task in ready:
            task.cancel()
        for opened in await asyncio.gather(*ready, return_exceptions=True):
            if isinstance(opened, McpSession):
                self.end(opened)
        for session in list(self._used):
            self.end(session)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _refill(self) -> None:
        while len(self._ready) < self._ahead:
            self._newest = asyncio.create_task(self._start())
            self._ready.append(self._newest)

    async def _start(self) -> McpSession:
        async with self._starts:
            session = self._new()
            try:
                await session.open()
            except BaseException:
                await asyncio.shield(session.close())
                raise
            return session
