"""What a kernel shows, caught and bounded at its source: printed text, descriptors 1 and 2, displayed values.

Stock ipykernel reads each descriptor in a thread of its own, whose output may come after the cell's end, and sends whatever
it is given, as one message. Here the IOPub thread reads the descriptors, every print and flush first takes what they hold,
so that the output of a finished subprocess is neither late nor out of order, and no message grows beyond a bound.
"""

import codecs
import contextlib
import os
import sys
import warnings
from typing import Any

from ipykernel.iostream import IOPubThread, OutStream

_NUMBERS = {"stdout": 1, "stderr": 2}
_SAID = 8192  # characters of an exception's name and of what it says; the traceback has more


def cut(text: str, limit: int) -> str:
    """`text` within about `limit` characters, without its middle when it is longer."""
    text = text if text.isascii() else text.encode("utf-8", "replace").decode()  # lone surrogates cannot be sent
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n… cut …\n{text[-(limit // 2) :]}"


class CapturedStream(OutStream):
    """An OutStream that also owns its descriptor. `limit` is set for all before the first is made."""

    limit = 1 << 17

    def __init__(self, session: Any, thread: IOPubThread, name: str, echo: object = None) -> None:
        super().__init__(session, thread, name, watchfd=False)
        self._number = _NUMBERS[name]
        self._pending = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.dup2(writing, self._number)
        os.close(writing)
        thread.io_loop.add_handler(self._reading, self._arrived, thread.io_loop.READ)

    def _arrived(self, *_: int) -> None:
        self._take()
        self._bound()

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
        self._take()
        # Anything but a string is left to the stock method's TypeError.
        super().write(cut(string, self.limit) if isinstance(string, str) else string)
        self._pending += len(string)
        self._bound()
        return len(string)

    def _flush(self) -> None:
        self._pending = 0
        self._take()
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


def allow_forks() -> None:
    """Let cells fork without the warning that Python 3.12 gives where there are threads: a child does without nbrl's own.

    Call it when the shell is made, which sets filters of its own.
    """
    warnings.filterwarnings("ignore", ".* is multi-threaded, use of fork", DeprecationWarning)


def bound_displays(shell: Any, limit: int) -> None:
    """Cut the texts of results, displays and errors. Call it in the main thread, in which cells run."""

    def shorten(message: dict[str, Any]) -> dict[str, Any]:
        data = message.get("content", {}).get("data", {})
        for kind, value in data.items():
            if isinstance(value, str):
                data[kind] = cut(value, limit)
        return message

    shell.displayhook.register_hook(shorten)
    shell.display_pub.register_hook(shorten)
    _bound_errors(shell.displayhook.session, limit)


def _bound_errors(session: Any, limit: int) -> None:
    """Cut what an exception says of itself, which is sent twice: as an output and in the cell's reply. No hook sees either."""
    send = session.send

    def bounded(stream: Any, kind: Any, content: Any = None, *rest: Any, **named: Any) -> Any:
        if isinstance(content, dict) and "traceback" in content:
            lines = "\n".join(map(str, content["traceback"]))
            said = {name: cut(str(content.get(name, "")), _SAID) for name in ("ename", "evalue")}
            content = {**content, **said, "traceback": [cut(lines, limit)]}
        return send(stream, kind, content, *rest, **named)

    session.send = bounded
