"""Whether an engine can be reached, asked all the time: a request that waits for an action cannot tell."""

import asyncio
import math
import time
from collections.abc import Callable

import aiohttp

EVERY_S = 2.0
LIMIT_S = 5.0  # an engine with all it can do answers sooner


class Reach:
    """Notes when an engine did not answer, or the runner itself stood still. `url` says where the engine is now.

    An episode whose time passed meanwhile is not to blame.
    """

    def __init__(self, session: aiohttp.ClientSession, url: Callable[[], str]) -> None:
        self._session, self._url = session, url
        self._missed_at = -math.inf

    def missed_since(self, moment: float) -> bool:
        """Whether the engine missed an answer after `moment`, in seconds of the monotonic clock."""
        return self._missed_at > moment

    async def watch(self) -> None:
        """Ask until cancelled. An answer of any kind is one: the engine was reached."""
        answered = time.monotonic()
        while True:
            reached = await self._reached()
            now = time.monotonic()
            if not reached or now - answered > EVERY_S + LIMIT_S:
                self._missed_at = now
            if reached:
                answered = now
            await asyncio.sleep(EVERY_S)

    async def _reached(self) -> bool:
        try:
            async with self._session.get(f"{self._url()}/model_info", timeout=aiohttp.ClientTimeout(total=LIMIT_S)):
                return True
        except (aiohttp.ClientError, TimeoutError):
            return False
