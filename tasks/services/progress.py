"""How whoever watches a run hears of it."""

import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """A subscriber to what happens in a run. It shows; it measures and decides nothing."""

    def begin(self, title: str) -> None:
        """Another part of the run begins, such as an iteration."""
        ...

    def started(self, name: str) -> None:
        """Work of this name is under way: a node, or a service that starts."""
        ...

    def advanced(self, name: str, done: int, total: int) -> None:
        """`done` of `total` items of the work are finished."""
        ...

    def ended(self, name: str, seconds: float) -> None:
        """The work ended, well or not, after `seconds`."""
        ...

    def say(self, text: str) -> None:
        """A sentence worth keeping."""
        ...


async def timed(progress: Progress, name: str, work: Awaitable[T]) -> tuple[T, float]:
    """The result of `work` and its wall seconds; `progress` hears when it starts and ends."""
    started = time.monotonic()
    progress.started(name)
    try:
        result = await work
    finally:
        seconds = time.monotonic() - started
        progress.ended(name, seconds)
    return result, seconds
