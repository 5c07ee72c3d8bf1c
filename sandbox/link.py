"""The two ZeroMQ connections of a client, shell (DEALER) and iopub (SUB), read by the event loop without helper threads or tasks.

A ZeroMQ descriptor tells of changes only, so after it fires, and after a send, everything there is must be read.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

from sandbox.process import Address
from sandbox.wire import Message, Wire

# Messages taken in one turn of the event loop: a flood from one kernel must not starve the others.
_TURN = 50
_FRAMES = 16


class Link:
    """Calls `receive` for each message that this kernel signed. A message beyond `largest` bytes ends its connection for good."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: Address, largest: int, receive: Callable[[Message], None]
    ) -> None:
        self._wire = Wire(address.key)
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._shell = context.socket(zmq.DEALER)
        self._iopub = context.socket(zmq.SUB)
        self._iopub.setsockopt(zmq.SUBSCRIBE, b"")
        for sock, channel in ((self._shell, "shell"), (self._iopub, "iopub")):
            sock.setsockopt(zmq.LINGER, 0)
            sock.setsockopt(zmq.MAXMSGSIZE, largest)
            sock.setsockopt(zmq.RCVHWM, 100)
            # A kernel whose connection was cut must not come back with half a story.
            sock.setsockopt(zmq.RECONNECT_IVL, -1)
            sock.connect(address.of(channel))
            self._loop.add_reader(sock.FD, self._drain, sock)
            self._loop.call_soon(self._drain, sock)

    def send(self, kind: str, content: dict[str, Any]) -> str:
        """Send a request on the shell channel; its id is what answers name as their parent."""
        identity, frames = self._wire.request(kind, content)
        self._shell.send_multipart(frames, zmq.NOBLOCK)
        self._loop.call_soon(self._drain, self._shell)
        return identity

    def _drain(self, sock: "zmq.Socket[bytes]") -> None:
        if sock.closed:
            return
        for _ in range(_TURN):
            try:
                frames = sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) > _FRAMES:
                self.close()  # no Jupyter message has so many: each may be as large as a whole message may
                return
            message = self._wire.parse(frames)
            if message is not None:
                self._receive(message)
        self._loop.call_soon(self._drain, sock)

    def close(self) -> None:
        """Close both connections; may be called twice."""
        for sock in (self._shell, self._iopub):
            if not sock.closed:
                self._loop.remove_reader(sock.FD)
                sock.close()
