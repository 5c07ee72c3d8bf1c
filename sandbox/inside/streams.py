"""stdout and stderr of a prepared kernel: what Python prints, and what anything else writes to descriptors 1 and 2.

Stock ipykernel reads each descriptor in a thread of its own, whose output may come after the cell's end. Here the IOPub thread
reads them, and every flush first takes what is in the pipe: the output of a finished subprocess is never late.
"""

import contextlib
import os
import sys
from typing import Any

from ipykernel.iostream import IOPubThread, OutStream

_NUMBERS = {"stdout": 1, "stderr": 2}


class CapturedStream(OutStream):
    """An OutStream that also owns its descriptor."""

    def __init__(self, session: Any, thread: IOPubThread, name: str) -> None:
        super().__init__(session, thread, name, watchfd=False)
        self._number = _NUMBERS[name]
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.dup2(writing, self._number)
        os.close(writing)
        thread.io_loop.add_handler(self._reading, self._readable, thread.io_loop.READ)

    def _readable(self, *_: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._reading, 65536)
            if data:
                self.write(data.decode(errors="replace"))

    def _flush(self) -> None:
        self._readable()
        super()._flush()

    def fileno(self) -> int:
        return self._number


def restore_in_children() -> None:
    """Give forked children (multiprocessing) plain files, whose text arrives here through the descriptors.

    ZeroMQ sockets do not survive a fork, and a child has no IOPub thread.
    """

    def after_fork() -> None:
        for name, number in _NUMBERS.items():
            file = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, file)

    os.register_at_fork(after_in_child=after_fork)
