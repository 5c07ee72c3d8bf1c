"""A client's connection to a kernel: channels shell (DEALER) and iopub (SUB), read by the event loop without helper threads.

The peer is hostile: it may send anything, endlessly, or read nothing. At most one message per channel is held, work in one
turn of the event loop is small and limited to a share of all turns, and unread data stays in the kernel's own memory.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Literal

from nbrl.sandbox.inside import zmtp
from nbrl.sandbox.jupyter.messages import KernelMessage, MessageCodec
from nbrl.sandbox.share import Share
from nbrl.sandbox.start.kernel_process import Address

# Messages and bytes read in one turn of the event loop: a flood from one kernel must not starve the others.
_TURN = 50
_CHUNK = 1 << 16


class _Channel:
    """One ZeroMQ channel over a unix socket. `broken` is called once, when the peer closes it or violates the protocol."""

    def __init__(
        self,
        path: str,
        role: Literal["DEALER", "SUB"],
        largest: int,
        receive: Callable[[list[bytes]], None],
        broken: Callable[[], None],
    ) -> None:
        self._parser = zmtp.Parser(largest)
        self._receive = receive
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        # Messages wait for READY; the greeting does not.
        self._waiting = bytearray(zmtp.SUBSCRIBE_ALL if role == "SUB" else b"")
        self._unsent = bytearray(zmtp.hello(role))
        self._share = Share()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.connect(path)
        except OSError:
            self._loop.call_soon(self._break)
            return
        self._loop.add_reader(self._socket, self._read)
        self._write()

    def send(self, frames: list[bytes]) -> None:
        """Send a message without waiting. If the peer has not yet read the previous one, break off: at most one is held."""
        if self._waiting or (self._parser.ready and self._unsent):
            self._break()
            return
        if self._parser.ready:
            self._unsent += zmtp.encode(frames)
            self._write()
        else:
            self._waiting += zmtp.encode(frames)

    def _write(self) -> None:
        if self._socket.fileno() < 0:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._break()
            return
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._break()
            return
        self._parser.feed(data)
        all_taken, wait = self._take_turn()
        if self._socket.fileno() >= 0 and (not all_taken or wait > 0):
            # Read no more until the received data is processed, over several turns.
            self._loop.remove_reader(self._socket)
            self._loop.call_later(wait, self._go_on)

    def _go_on(self) -> None:
        if self._socket.fileno() < 0:
            return
        all_taken, wait = self._take_turn()
        if self._socket.fileno() < 0:
            return
        if all_taken and wait <= 0:
            self._loop.add_reader(self._socket, self._read)
        else:
            self._loop.call_later(wait, self._go_on)

    def _take_turn(self) -> tuple[bool, float]:
        """Process messages; returns whether none are left, and the seconds until this channel's next turn."""
        with self._share.spend():
            all_taken = self._take()
        return all_taken, self._share.wait()

    def _take(self) -> bool:
        """Pass on the messages of one turn; returns whether none are left."""
        for _ in range(_TURN):
            try:
                frames = self._parser.take()
            except zmtp.Breach:
                self._break()
                return True
            if self._waiting and self._parser.ready:
                self._unsent += self._waiting
                self._waiting.clear()
                self._write()
            if frames is None:
                return True
            self._receive(frames)
            if self._socket.fileno() < 0:
                return True
        return False

    def _break(self) -> None:
        if self._socket.fileno() >= 0:
            self.close()
            self._broken()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()


class Connection:
    """Calls `receive` for each message that this kernel signed, and `broken` once when a channel ends for good, because the
    kernel ended, a message had more than `largest` bytes, or the protocol was violated."""

    def __init__(
        self, address: Address, largest: int, receive: Callable[[KernelMessage], None], broken: Callable[[], None]
    ) -> None:
        self._codec = MessageCodec(address.key)
        self._receive = receive
        self._broken = broken
        self._closed = False
        shell, iopub = (address.of(channel).removeprefix("ipc://") for channel in ("shell", "iopub"))
        self._shell = _Channel(shell, "DEALER", largest, self._parse, self._break)
        self._iopub = _Channel(iopub, "SUB", largest, self._parse, self._break)

    def send(self, kind: str, content: dict[str, Any]) -> str:
        """Send a request on the shell channel; returns its id, the parent of its answers. A broken connection drops it."""
        identity, frames = self._codec.request(kind, content)
        if not self._closed:
            self._shell.send(frames)
        return identity

    def _parse(self, frames: list[bytes]) -> None:
        message = self._codec.parse(frames)
        if message is not None:
            self._receive(message)

    def _break(self) -> None:
        if not self._closed:
            self.close()
            self._broken()

    def close(self) -> None:
        """Close both channels; may be called twice."""
        self._closed = True
        self._shell.close()
        self._iopub.close()
