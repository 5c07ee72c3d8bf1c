"""Calls functions when descriptors can be read, and after a time: the loop of a thread, as small as a fork can pay for."""

import contextlib
import os
import select
import time
from collections.abc import Callable
from operator import itemgetter


class Watch:
    """Descriptors are added before it runs. It has the interface of tornado's loop as far as streams use it."""

    READ = select.POLLIN

    def __init__(self) -> None:
        self._poll = select.poll()
        self._called: dict[int, Callable[[int], object]] = {}
        self._late: list[tuple[float, Callable[[], None]]] = []
        self._running = True
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.add_handler(self._wake, os.eventfd_read)

    def add_handler(self, descriptor: int, call: Callable[[int], object], events: int = READ) -> None:
        """Call it in the thread, with the descriptor, whenever that can be read."""
        self._called[descriptor] = call
        self._poll.register(descriptor, events)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it in the thread after some seconds. May be called in any thread."""
        self._late.append((time.monotonic() + seconds, call))
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End `run`. May be called in any thread."""
        self._running = False
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Call the functions until `stop`; an exception of one does not affect the others."""
        while self._running:
            wait = max(0.0, min(due for due, _ in self._late) - time.monotonic()) * 1000 if self._late else None
            for descriptor, event in self._poll.poll(wait):
                if not event & select.POLLIN:  # the cell has closed the other end
                    self._poll.unregister(descriptor)
                    continue
                with contextlib.suppress(Exception):
                    self._called[descriptor](descriptor)
            now = time.monotonic()
            for due in sorted((each for each in self._late if each[0] <= now), key=itemgetter(0)):
                self._late.remove(due)
                with contextlib.suppress(Exception):
                    due[1]()
