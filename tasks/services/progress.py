"""The interface through which a run reports its progress."""

import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """A subscriber to the events of a run. It displays them; it measures and decides nothing."""

    def begin(self, title: str) -> None:
        """A new part of the run begins, such as an iteration."""
        ...

    def started(self, name: str) -> None:
        """Work of this name started: a node, or the start of a service."""
        ...

    def advanced(self, name: str, done: int, total: int) -> None:
        """`done` of `total` items of the work are finished."""
        ...

    def ended(self, name: str, seconds: float) -> None:
        """The work ended after `seconds`, successfully or not."""
        ...

    def say(self, text: str) -> None:
        """Print a sentence that stays visible."""
        ...


async def timed(progress: Progress, name: str, work: Awaitable[T]) -> tuple[T, float]:
    """Return the result of `work` and its wall seconds, and report its start and end to `progress`."""
    started = time.monotonic()
    progress.started(name)
    try:
        result = await work
    finally:
        seconds = time.monotonic() - started
        progress.ended(name, seconds)
    return result, seconds
