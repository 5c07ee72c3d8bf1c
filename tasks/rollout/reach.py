"""Whether an engine can be reached, asked all the time: a request that waits for an action cannot tell."""

import asyncio
import math
import time
from collections.abc import Callable

import aiohttp

EVERY_S = 2.0
LIMIT_S = 5.0  # an engine with all it can do answers sooner
LATE_S = 1.0  # if the limit passes so late, the runner itself stood still, and the network is not to blame


class Reach:
    """Notes when an engine did not answer. `url` says where it is now; an episode whose time passed meanwhile is not to blame."""

    def __init__(self, session: aiohttp.ClientSession, url: Callable[[], str]) -> None:
        self._session, self._url = session, url
        self._missed_at = -math.inf

    def missed_since(self, moment: float) -> bool:
        """Whether the engine missed an answer after `moment`, in seconds of the monotonic clock."""
        return self._missed_at > moment

    async def watch(self) -> None:
        """Ask until cancelled. An answer of any kind is one: the engine was reached."""
        while True:
            asked = time.monotonic()
            try:
                async with self._session.get(f"{self._url()}/model_info", timeout=aiohttp.ClientTimeout(total=LIMIT_S)):
                    pass
            except (aiohttp.ClientError, TimeoutError):
                now = time.monotonic()
                if now - asked < LIMIT_S + LATE_S:
                    self._missed_at = now
            await asyncio.sleep(EVERY_S)
