"""What the children of one trajectory may use, at all depths together: calls, sampled tokens and seconds."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nbrl.agent.errors import ExhaustedError, RefusedError
from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation, Policy
from nbrl.agent.settings import ChildSettings


class Stopwatch:
    """Counts the seconds in which anything runs, once however much runs at the same time."""

    def __init__(self) -> None:
        self._running, self._since, self._used = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        return self._used + (time.monotonic() - self._since if self._running else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the seconds meanwhile."""
        if not self._running:
            self._since = time.monotonic()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._used += time.monotonic() - self._since


class ChildBudget:
    """Seconds are those in which any child runs, counted by `watch`."""

    def __init__(self, settings: ChildSettings) -> None:
        self._calls, self._tokens, self._seconds = settings.calls, settings.tokens, settings.seconds
        self._reserved = 0
        self._freed = asyncio.Condition()
        self.watch = Stopwatch()

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._seconds - self.watch.seconds)

    def refusal(self) -> str:
        """Return why no further child can be called; empty where one can."""
        if self._calls <= 0:
            return "no calls are left in the budget"
        if self._tokens + self._reserved <= 0:
            return "no tokens are left in the budget"
        return "" if self.seconds_left > 0 else "no seconds are left in the budget"

    def take_call(self) -> None:
        """Count a call. Raises ValueError where none is left."""
        if reason := self.refusal():
            raise ValueError(reason)
        self._calls -= 1

    def render(self) -> str:
        """Return what is left, for the tail of a prompt: tokens rounded down to hundreds, seconds to tens."""
        tokens, seconds = self._tokens // 100 * 100, int(self.seconds_left) // 10 * 10
        return f", calls {self._calls}, their tokens {tokens}, their seconds {seconds}"

    async def reserve(self, tokens: int) -> int:
        """Return how many tokens may be sampled now, up to `tokens`; waits for reserved ones that may come back. 0: none."""
        async with self._freed:
            while self._tokens < tokens and self._reserved:
                await self._freed.wait()
            given = min(tokens, self._tokens)
            self._tokens -= given
            self._reserved += given
            return given

    async def settle(self, reserved: int, sampled: int) -> None:
        """Give back what was reserved and not sampled."""
        async with self._freed:
            self._reserved -= reserved
            self._tokens += reserved - sampled
            self._freed.notify_all()


class MeteredPolicy:
    """A policy of children, whose tokens are taken from a budget. Raises ExhaustedError once there are none, and for a prompt
    that the server refuses: it took those of the agent that called.
    """

    def __init__(self, policy: Policy, budget: ChildBudget) -> None:
        self._policy, self._budget = policy, budget

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        room, sampled = await self._budget.reserve(max_tokens), 0
        try:
            if not room:
                raise ExhaustedError("the tokens of children are used up")
            generation = await self._policy.generate(prompt, room, seed)
            sampled = len(generation.token_ids)
            return generation
        except asyncio.CancelledError:  # what the engine sampled until then is not known
            sampled = room
            raise
        except RefusedError as error:
            raise ExhaustedError(str(error)) from error
        finally:
            await asyncio.shield(self._budget.settle(room, sampled))
