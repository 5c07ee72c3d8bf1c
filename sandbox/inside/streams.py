"""Catches and bounds what a kernel prints: its streams and descriptors 1 and 2.

Stock ipykernel reads each descriptor in a thread of its own, whose output may come after the cell's end, and sends whatever
it is given, as one message. Here the IOPub thread reads the descriptors, every print and flush first takes what they hold,
so that the output of a finished subprocess is neither late nor out of order, and no message grows beyond a bound. What one
stream still holds is sent before the other takes more.
"""

import codecs
import contextlib
import io
import os
import sys
from typing import Any

from ipykernel.iostream import IOPubThread, OutStream

NUMBERS = {"stdout": 1, "stderr": 2}
TURNS = 1000  # messages of each stream in a cell that are sent for the sake of order, at up to a millisecond each


def cut(text: str, limit: int) -> str:
    """Return `text` within about `limit` characters, without its middle when it is longer."""
    text = text if text.isascii() else text.encode("utf-8", "replace").decode()  # lone surrogates cannot be sent
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n… cut …\n{text[-(limit // 2) :]}"


class CapturedStream(OutStream):
    """An OutStream that also owns its descriptor. `limit` is set for all before the first is made.

    In a child that a cell forked (`forked`) it writes to that descriptor, from which the kernel reads.
    """

    limit = 1 << 17
    forked = False
    made: dict[str, "CapturedStream"] = {}  # noqa: RUF012  (one of each name)

    def __init__(self, session: Any, thread: IOPubThread, name: str, echo: object = None) -> None:
        super().__init__(session, thread, name, watchfd=False)
        self._number = NUMBERS[name]
        self._pending = self._turns = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._bytes = _Bytes(self)
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.dup2(writing, self._number)
        os.close(writing)
        self.made[name] = self
        setattr(sys, f"__{name}__", self)  # what ends a capture takes it for the real one
        thread.io_loop.add_handler(self._reading, self._arrived, thread.io_loop.READ)

    def _arrived(self, *_: int) -> None:
        self._after_the_other()
        self._take()
        self._bound()

    def _after_the_other(self) -> None:
        """Send what the other stream holds, for it was written before what comes now; beyond TURNS of a cell it may wait."""
        for other in self.made.values():
            if other is not self and other._turns < TURNS:
                other._take()
                if other._pending:
                    other._turns += 1
                    other.flush()

    @property
    def parent_header(self) -> Any:
        """Return the request that is answered; of what the loop itself says, the current one."""
        return self._parent_header.get({}) or self._parent_header_global

    @parent_header.setter
    def parent_header(self, value: Any) -> None:
        self._parent_header.set(value)
        self._parent_header_global = value

    def set_parent(self, parent: Any) -> None:
        self._turns = 0
        super().set_parent(parent)

    def _take(self) -> None:
        """Move what was written to the descriptor into the buffer of the current cell."""
        with self._buffer_lock, contextlib.suppress(BlockingIOError):
            data = os.read(self._reading, 65536)
            # Not by `write`: called back from the event loop it would see the parent of long ago.
            self._buffers[frozenset(self._parent_header_global.items())].write(self._decode(data))
            self._schedule_flush()
            self._pending += len(data)

    def _bound(self) -> None:
        if self._pending > self.limit:
            self.flush()

    def write(self, string: str) -> int:
        if self.forked and isinstance(string, str):
            _write_all(self._number, string.encode("utf-8", "backslashreplace"))
            return len(string)
        self._after_the_other()
        self._take()
        # Anything but a string is left to the stock method's TypeError.
        super().write(cut(string, self.limit) if isinstance(string, str) else string)
        self._pending += len(string)
        self._bound()
        return len(string)

    def flush(self) -> None:
        if not self.forked:
            super().flush()

    def _flush(self) -> None:
        self._pending = 0
        self._take()
        super()._flush()

    def close(self) -> None:
        """Send what is written. The kernel needs the stream after the cell that closes it."""
        self.flush()

    def fileno(self) -> int:
        return self._number

    @property
    def buffer(self) -> io.BufferedIOBase:
        """Return the stream for bytes, as UTF-8: one, for a character may come in several writes."""
        return self._bytes

    def reconfigure(self, **options: object) -> None:
        """Do nothing: text always leaves the kernel as UTF-8, line by line or not."""


class _Bytes(io.BufferedIOBase):
    """Replaces the byte file of a text file."""

    def __init__(self, stream: CapturedStream) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._stream.write(self._decode(view.tobytes()))
        return view.nbytes

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()


def _write_all(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]
