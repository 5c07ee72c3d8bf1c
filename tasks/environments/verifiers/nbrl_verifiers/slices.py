"""Bounds how long a coroutine may run without waiting: a pattern or a proof that never ends would hold up all trajectories.

Code of a taskset runs on one loop, and what it is given is a model's. Each piece of it between two waits gets SLICE_S seconds of
processor time, by a timer whose signal Python, its patterns and its large numbers heed. Scorers use the timer of the clock.
"""

import asyncio
import signal
from collections.abc import Coroutine, Generator
from types import FrameType
from typing import Any

from .errors import TooLongError

SLICE_S = 10.0
UNBOUNDED = "unbounded"
"""The name of a task whose pieces may take long: what is set up once for all trajectories."""


class SlicedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine that TooLongError is raised in when a piece of it takes too long."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        signal.setitimer(signal.ITIMER_PROF, SLICE_S)
        try:
            return self._inner.send(value)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def throw(self, *given: Any) -> Any:
        signal.setitimer(signal.ITIMER_PROF, SLICE_S)
        try:
            return self._inner.throw(*given)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()


def sliced(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    """Return a task whose pieces are bounded: the task factory of a loop in the main thread."""
    signal.signal(signal.SIGPROF, _too_long)
    bounded = asyncio.iscoroutine(coroutine) and options.get("name") != UNBOUNDED
    return asyncio.Task(SlicedCoroutine(coroutine) if bounded else coroutine, loop=loop, **options)


def unbound() -> None:
    """Let the piece that runs take as long as it needs."""
    signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError(f"code of the taskset ran for {SLICE_S:g} s without waiting")
