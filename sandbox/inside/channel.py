"""The tool channel as both ends speak it: a length, then that many bytes of JSON; requests and answers carry a number.

The connected socket is the identity: the process with this kernel's end is this kernel, so there is no token to steal.
"""

import _signal  # type: ignore[import-not-found]  # several in every cell: the public module's enumerations take 10 µs each time
import json
import os
import select
import signal
import socket
import struct
import threading
from typing import Any

LENGTH = struct.Struct("!I")
_SIGINT = int(signal.SIGINT)


def frame(value: object) -> bytes:
    """Return `value` as it goes over the channel."""
    data = json.dumps(value).encode()
    return LENGTH.pack(len(data)) + data


class Uninterrupted:
    """Puts an interrupt off until the block is done, so that no half frame is left behind."""

    __slots__ = ("_handler", "_noted")

    def __enter__(self) -> None:
        self._noted = False
        # Only the main thread is interrupted.
        main = threading.get_ident() == threading.main_thread().ident
        self._handler = _signal.signal(_SIGINT, self._note) if main else None

    def _note(self, *_: object) -> None:
        self._noted = True

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            _signal.signal(_SIGINT, self._handler)
            if self._noted and callable(self._handler):
                self._handler(_SIGINT, None)


class Channel:
    """The kernel's end. Calls are synchronous, one at a time whichever thread makes them.

    An interrupted call leaves the channel whole: its late answer is known by its number and dropped.
    """

    def __init__(self, sock: socket.socket, limit: int = 1 << 20) -> None:
        self.limit = limit
        self._socket = sock
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._number = 0

    def receive(self) -> Any:
        """Return the next value from the host."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while True:
            end = LENGTH.size + (LENGTH.unpack_from(self._buffer)[0] if len(self._buffer) >= LENGTH.size else 0)
            if len(self._buffer) >= end > LENGTH.size:
                value = json.loads(self._buffer[LENGTH.size : end])
                del self._buffer[:end]
                return value
            poll.poll()
            with Uninterrupted():
                data = self._socket.recv(1 << 16)
                self._buffer += data
            if not data:
                raise ConnectionError("it closed the tool channel")

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Ask the host to run `name`; a RuntimeError says what went wrong there."""
        if os.getpid() != self._owner:
            raise RuntimeError(f"{name}: tools answer only in the kernel's own process, not in one that it forked")
        with self._lock:
            self._number += 1
            number = self._number
            try:
                request = frame({"id": number, "name": name, "arguments": arguments})
            except (TypeError, ValueError) as error:
                raise RuntimeError(f"{name}: the arguments are not JSON: {error}") from None
            if len(request) > self.limit:
                raise RuntimeError(f"{name}: the arguments take {len(request)} bytes, {self.limit} are allowed")
            try:
                with Uninterrupted():
                    self._socket.sendall(request)
                answer = self.receive()
                while answer.get("id") != number:
                    answer = self.receive()
            except OSError as error:
                raise RuntimeError(f"{name}: the host does not answer: {error}") from None
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]
