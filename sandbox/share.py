"""What hostile bytes may cost the event loop: a share of its time for each connection, measured and paid for afterwards."""

import gc
import time
from collections.abc import Awaitable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Of the event loop's time: the share of one connection, and the seconds that it may take at once.
_SHARE, _BURST_S = 0.1, 0.2


class Share:
    """The account of one connection. Messages differ a thousandfold in what they cost for each byte, so time is counted."""

    def __init__(self) -> None:
        # When what was spent is paid for at the rate of the share.
        self._due = 0.0

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Work on the connection's account; it must not wait for anything, and should free what it made."""
        began = time.thread_time()
        try:
            with _uncollected():
                yield
        finally:
            now = time.monotonic()
            self._due = max(self._due, now - _BURST_S / _SHARE) + (time.thread_time() - began) / _SHARE

    def steps(self, work: Awaitable[T]) -> Awaitable[T]:
        """The same work, which may wait: each of its turns of the event loop is on the connection's account."""
        return _Steps(self, work)

    def wait(self) -> float:
        """The seconds until the connection may spend more."""
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
                # Who awaits this was cancelled, which is for the work to know.
                go_on = partial(steps.throw, error)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles, which a message of a million empty lists would set to work hundreds of times in vain.

    Objects freed inside no longer count towards the collector's next round, which looks at all objects of the process at worst.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
