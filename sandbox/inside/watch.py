"""Calls functions when descriptors can be read, and after a time: the loop of a thread, as small as a fork can pay for."""

import contextlib
import ctypes
import os
import select
import struct
from collections.abc import Callable
from typing import Any

_MONOTONIC, _NONBLOCK, _CLOEXEC = 1, 0o4000, 0o2000000
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Descriptors are added before it runs. It has the interface of tornado's loop as far as streams use it."""

    READ = select.POLLIN

    def __init__(self) -> None:
        self._poll = select.poll()
        self._called: dict[int, Callable[[int], None]] = {}
        self._late: list[Callable[[], None]] = []
        self._timer = _libc.timerfd_create(_MONOTONIC, _NONBLOCK | _CLOEXEC)
        self.add_handler(self._timer, self._expired)

    def add_handler(self, descriptor: int, call: Callable[[int], None], events: int = READ) -> None:
        """Call it in the thread, with the descriptor, whenever that can be read."""
        self._called[descriptor] = call
        self._poll.register(descriptor, events)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it in the thread after some seconds, without waking the thread before. May be called in any thread."""
        self._late.append(call)
        whole = int(seconds)
        # interval (none) and value of a struct itimerspec
        _libc.timerfd_settime(self._timer, 0, struct.pack("qqqq", 0, 0, whole, int((seconds - whole) * 1e9)), None)

    def _expired(self, timer: int) -> None:
        with contextlib.suppress(BlockingIOError):  # it was set again meanwhile
            os.read(timer, 8)
        late, self._late = self._late, []
        for call in late:
            call()

    def run(self) -> None:
        """For ever; what a call raises concerns nobody but that call."""
        while True:
            for descriptor, event in self._poll.poll():
                if not event & select.POLLIN:  # the cell has closed the other end
                    self._poll.unregister(descriptor)
                    continue
                with contextlib.suppress(Exception):
                    self._called[descriptor](descriptor)

    def stop(self, *_: Any) -> None:
        """It ends with its process."""
