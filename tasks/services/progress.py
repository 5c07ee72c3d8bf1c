"""The interface through which a run reports its progress."""

import time
from collections.abc import Awaitable
from types import TracebackType
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """A subscriber to the events of a run. It displays them; it measures and decides nothing."""

    def begin(self, title: str) -> None:
        """Note that a new part of the run begins, such as an iteration."""
        ...

    def started(self, name: str) -> None:
        """Note that work of this name started: a node, or the start of a service."""
        ...

    def advanced(self, name: str, done: int, total: int) -> None:
        """Note that `done` of `total` items of the work are finished."""
        ...

    def ended(self, name: str, seconds: float) -> None:
        """Note that the work ended after `seconds`, successfully or not."""
        ...

    def say(self, text: str) -> None:
        """Print a sentence that stays visible."""
        ...


class Titled:
    """A Progress that names the part of a run to which the work belongs, beside other work of another part."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress, self._title = progress, title

    def begin(self, title: str) -> None:
        self._progress.begin(title)

    def started(self, name: str) -> None:
        self._progress.started(self._named(name))

    def advanced(self, name: str, done: int, total: int) -> None:
        self._progress.advanced(self._named(name), done, total)

    def ended(self, name: str, seconds: float) -> None:
        self._progress.ended(self._named(name), seconds)

    def say(self, text: str) -> None:
        self._progress.say(f"{self._title}: {text}")

    def _named(self, name: str) -> str:
        return f"{name} of {self._title}"


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


class Busy:
    """A context for each piece of work; `seconds` is for how long at least one has been open."""

    def __init__(self) -> None:
        self._open, self._since, self._total_s = 0, 0.0, 0.0

    def __enter__(self) -> None:
        if not self._open:
            self._since = time.monotonic()
        self._open += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open -= 1
        if not self._open:
            self._total_s += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        return self._total_s + (time.monotonic() - self._since if self._open else 0.0)
