"""Limits what hostile bytes cost the event loop: each connection gets a share of its time, measured afterwards."""

import gc
import time
from collections.abc import Awaitable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# The share of the event loop's time for one connection, and the seconds that it may use at once.
_SHARE, _BURST_S = 0.1, 0.2


class Share:
    """The time account of one connection. The cost per byte varies a thousandfold between messages, so time is counted."""

    def __init__(self) -> None:
        # When the time spent so far is recovered at the rate of the share.
        self._due = 0.0

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Charge the block's time to the connection; the block must not wait, and should free its own objects."""
        began = time.thread_time()
        try:
            with _uncollected():
                yield
        finally:
            now = time.monotonic()
            self._due = max(self._due, now - _BURST_S / _SHARE) + (time.thread_time() - began) / _SHARE

    def steps(self, work: Awaitable[T]) -> Awaitable[T]:
        """Charge work that may wait to the connection: each of its turns of the event loop counts."""
        return _Steps(self, work)

    def wait(self) -> float:
        """Return the seconds until the connection may spend more."""
        return max(0.0, self._due - time.monotonic())


class _Steps(Generic[T]):
    def __init__(self, share: Share, work: Awaitable[T]) -> None:
        self._share = share
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        go_on = partial(next, steps)
        while True:
            with self._share.spend():
                try:
                    waits_for = go_on()
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
            try:
                yield waits_for
                go_on = partial(next, steps)
            except BaseException as error:
                # The awaiting task was cancelled; pass that on to the work.
                go_on = partial(steps.throw, error)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the garbage collector, which a message of a million empty lists would trigger hundreds of times in vain.

    Objects freed inside no longer count towards the collector's next round, which looks at all objects of the process at worst.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
