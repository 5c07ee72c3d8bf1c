"""The tool channel as both ends speak it: a length, then that many bytes of JSON; one request, one answer.

The connected socket is the identity: whoever holds this kernel's end is this kernel, so there is no token to steal.
"""

import json
import socket
import struct
import threading
from typing import Any

_LENGTH = struct.Struct("!I")


def frame(value: object) -> bytes:
    """`value` as it goes over the channel."""
    data = json.dumps(value).encode()
    return _LENGTH.pack(len(data)) + data


class Channel:
    """The kernel's end. Calls are synchronous, and one at a time whichever thread makes them."""

    def __init__(self, sock: socket.socket, limit: int = 1 << 20) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._broken = False
        self.limit = limit

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            piece = self._socket.recv(count - len(parts))
            if not piece:
                raise ConnectionError("the host closed the tool channel")
            parts += piece
        return bytes(parts)

    def receive(self) -> Any:
        """The next value from the host."""
        (count,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return json.loads(self._exactly(count))

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Ask the host to run `name`; a RuntimeError says what went wrong there."""
        try:
            request = frame({"name": name, "arguments": arguments})
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"{name}: the arguments are not JSON: {error}") from None
        if len(request) > self.limit:
            raise RuntimeError(f"{name}: the arguments take {len(request)} bytes, more than the allowed {self.limit}")
        with self._lock:
            if self._broken:
                raise RuntimeError(f"{name}: an earlier call was interrupted, so this kernel can make no more calls")
            # An interrupt between request and answer would make the next call read this one's answer.
            self._broken = True
            try:
                self._socket.sendall(request)
                answer = self.receive()
            except OSError as error:
                raise RuntimeError(f"{name}: the host does not answer: {error}") from None
            self._broken = False
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]
