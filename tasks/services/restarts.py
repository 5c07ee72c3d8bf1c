"""Decides whether the services of a run are started again after one of them failed."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx

from nbrl.agent.errors import PolicyError
from nbrl.infra.errors import DamagedError, InfraError, MissingError, PlaceError
from nbrl.sandbox.errors import SandboxError
from nbrl.tasks.errors import (
    BrokenInvariantError,
    ConfigError,
    LearnerEndedError,
    LearnerUnplacedError,
    RolloutError,
    TakenOverError,
)

T = TypeVar("T")
WAITS_S = (5.0, 20.0, 60.0)  # before the first, the second and each further restart in a row
# What new processes can cure. A refused order (UpdateError) is not: another learner refuses it too. httpx's errors are those of
# Prefect's client.
INFRASTRUCTURE = (InfraError, SandboxError, PolicyError, RolloutError, LearnerEndedError, httpx.TransportError)
# Missing machines were waited for already, and may never come back.
FINAL = (DamagedError, MissingError, ConfigError, BrokenInvariantError, TakenOverError, PlaceError, LearnerUnplacedError)


class Restarts:
    """Runs the work of a training again after infrastructure errors, at most `most` times in a row; `say` reports each time.

    The work reports by `up` that its services serve, and by `reached` how far it came. Before the first `up` nothing is
    repeated: what never served is more likely misconfigured than broken.
    """

    def __init__(self, most: int, say: Callable[[str], None]) -> None:
        self._most, self._say = most, say
        self._used, self._reached, self._came_up = 0, 0, False
        self.made = 0

    def up(self) -> None:
        self._came_up = True

    def reached(self, iterations: int) -> None:
        """Count restarts anew if more iterations are finished than ever before."""
        if iterations > self._reached:
            self._reached, self._used = iterations, 0

    async def over(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`; it is called again after an error that new services can cure."""
        while True:
            try:
                return await work()
            except Exception as error:
                if not self._came_up or self._used >= self._most or not curable(error):
                    raise
                reason = first_line(error)
            wait = WAITS_S[min(self._used, len(WAITS_S) - 1)]
            self._used += 1
            self.made += 1
            self._say(
                f"{reason}; all services are started again in {wait:g} s ({self._used} of at most {self._most} in a row), "
                "nothing that was finished is lost"
            )
            await asyncio.sleep(wait)


def curable(error: BaseException) -> bool:
    """Return whether only the infrastructure failed: an error while the services end must not hide what ended them."""
    earlier: BaseException | None = error
    while earlier is not None:
        if isinstance(earlier, FINAL):
            return False
        earlier = earlier.__context__
    ray = sys.modules.get("ray.exceptions")  # imported, or the error is none of Ray's
    return isinstance(error, INFRASTRUCTURE) or (ray is not None and isinstance(error, ray.RayError))


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
