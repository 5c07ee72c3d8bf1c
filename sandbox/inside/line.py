"""The channels between a forked kernel and nbrl's own client, without libzmq: its threads and queues cost more than a cell.

A line has one peer. The host is trusted: what it sends is not bounded here.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

import zmq
from tornado.ioloop import IOLoop

from nbrl.sandbox.inside import zmtp
from nbrl.sandbox.inside.channel import Uninterrupted

_CHUNK = 1 << 16


class Line:
    """One channel, on a listening socket that the host made. `receive` gets the frames of each message, in the main thread."""

    def __init__(self, descriptor: int, role: Literal["ROUTER", "XPUB"], receive: Callable[[list[bytes]], None]) -> None:
        self._listening = socket.socket(fileno=descriptor)
        self._role: Literal["ROUTER", "XPUB"] = role
        self._receive = receive
        self._parser = zmtp.Parser(sys.maxsize)
        self._peer: socket.socket | None = None

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take in the first peer, and then what it sends."""
        loop.add_reader(self._listening, self._accept, loop)

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            peer, _ = self._listening.accept()
        except BlockingIOError:  # it has gone again
            return
        loop.remove_reader(self._listening)
        self._listening.close()
        # A slow client makes the kernel wait: memory is short here, and no message may be lost.
        peer.setblocking(True)
        self._peer = peer
        self.send(zmtp.hello(self._role))
        loop.add_reader(peer, self._read, loop, peer)

    def _read(self, loop: asyncio.AbstractEventLoop, peer: socket.socket) -> None:
        try:
            data = peer.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(peer)
            return
        self._parser.feed(data)
        while (frames := self._parser.take()) is not None:
            self._receive(frames)

    def send(self, data: bytes) -> None:
        """Send bytes. Does nothing where there is no peer, or none any more: the host ends the kernel then."""
        if self._peer is not None:
            with contextlib.suppress(OSError):
                self._peer.sendall(data)

    def send_multipart(self, frames: Sequence[Any], *_: object, **__: object) -> None:
        """Send one message; called as a socket of libzmq is. Waits for a peer that is slow."""
        self.send(zmtp.encode([frame if isinstance(frame, bytes) else bytes(frame) for frame in frames]))


class ShellLine(Line):
    """Replaces ipykernel's stream of the shell channel."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "ROUTER", self._begin)
        self._tasks: set[asyncio.Task[None]] = set()

    def on_recv(self, handle: Callable[[list[zmq.Frame]], Coroutine[Any, Any, None]], copy: bool) -> None:
        """Serve; each message is handled in a task of its own."""
        self._handle = handle
        self._loop = asyncio.get_event_loop()
        self.serve(self._loop)

    @property
    def io_loop(self) -> IOLoop:
        """Return the loop of the main thread, from which this is called."""
        return IOLoop.current()

    def _begin(self, frames: list[bytes]) -> None:
        task = self._loop.create_task(self._handle([zmq.Frame(frame) for frame in frames]))
        self._tasks.add(task)  # the loop alone would let it be collected
        task.add_done_callback(self._tasks.discard)

    def send_multipart(self, frames: Sequence[Any], *_: object, **__: object) -> None:
        """Send a message; an interrupt waits, so that no message is cut in two."""
        with Uninterrupted():
            super().send_multipart(frames)

    def flush(self, *_: object, **__: object) -> int:
        """Do nothing: messages are sent at once."""
        return 0
