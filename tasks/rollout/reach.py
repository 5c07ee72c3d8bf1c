"""Whether an engine can be reached, asked all the time: a request that waits for an action cannot tell."""

import asyncio
import time
from collections.abc import Callable

import aiohttp

EVERY_S = 2.0
LIMIT_S = 5.0  # a later answer counts as none


class Reach:
    """Notes how long an engine did not answer, or the runner itself stood still. `url` says where the engine is now.

    An episode whose time passed meanwhile is not to blame.
    """

    def __init__(self, session: aiohttp.ClientSession, url: Callable[[], str]) -> None:
        self._session, self._url = session, url
        self.reached = True  # when it was asked last
        self._gaps: dict[float, float] = {}  # when the last answer before one came, and when that gap was seen last

    def missed_s(self, moment: float) -> float:
        """Seconds without an answer after `moment` of the monotonic clock."""
        return sum(max(0.0, end - max(begin, moment)) for begin, end in self._gaps.items())

    async def watch(self) -> None:
        """Ask until cancelled. An answer of any kind is one: the engine was reached."""
        answered = time.monotonic()
        while True:
            self.reached = await self._asked()
            now = time.monotonic()
            if not self.reached or now - answered > EVERY_S + LIMIT_S:
                self._gaps[answered] = now
            if self.reached:
                answered = now
            await asyncio.sleep(EVERY_S)

    async def _asked(self) -> bool:
        try:
            async with self._session.get(f"{self._url()}/model_info", timeout=aiohttp.ClientTimeout(total=LIMIT_S)):
                return True
        except (aiohttp.ClientError, TimeoutError):
            return False
