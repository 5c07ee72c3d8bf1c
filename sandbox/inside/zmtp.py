"""ZMTP 3.0, the protocol of ZeroMQ, as the host and a forked kernel speak it: decodes bytes into bounded messages, without I/O.

libzmq bounds a frame and counts complete messages, so a peer that sends one message of endlessly many frames fills the
receiver's memory. Here the bound covers a message with all of its frames. Only what a kernel and its client need is implemented:
the NULL mechanism, no command after READY.
"""

import struct
from typing import Literal

_MORE, _LONG, _COMMAND = 1, 2, 4
_SIZE = struct.Struct("!Q")
_GREETING = 64
# No Jupyter message has so many.
_FRAMES = 16

SUBSCRIBE_ALL = b"\x00\x01\x01"


class Breach(Exception):  # noqa: N818  (it names what the peer did)
    """The peer broke the protocol or a bound; nothing more can be read from it."""


def hello(role: Literal["DEALER", "SUB", "ROUTER", "XPUB"]) -> bytes:
    """Return the first bytes to send: greeting and READY. Messages may follow once the parser is `ready`."""
    ready = b"\x05READY\x0bSocket-Type" + struct.pack("!I", len(role)) + role.encode()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    return greeting + bytes((_COMMAND, len(ready))) + ready


def encode(frames: list[bytes]) -> bytes:
    """Encode a message for the wire."""
    parts = []
    for number, frame in enumerate(frames, start=1):
        more = _MORE if number < len(frames) else 0
        size = len(frame)
        parts += [bytes((more, size)) if size < 256 else bytes((more | _LONG,)) + _SIZE.pack(size), frame]
    return b"".join(parts)


class Parser:
    """Parses what a peer sends in pieces of any size. Call `feed` only after `take` returned None: then it holds at most
    `largest` bytes of an unfinished message, a frame's head and the last piece."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._buffer = bytearray()
        self._frames: list[bytes] = []
        self._size = 0
        self._greeted = False
        self.ready = False

    @property
    def held(self) -> int:
        """Return the number of bytes kept for messages that are not taken yet."""
        return len(self._buffer) + self._size

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._buffer += data

    def take(self) -> list[bytes] | None:
        """Return the frames of the next message; None when more bytes are needed. Raises Breach."""
        if not self._greeted and not self._greet():
            return None
        while (part := self._part()) is not None:
            flags, frame = part
            if not self.ready:
                if flags != _COMMAND or not frame.startswith(b"\x05READY"):
                    raise Breach("the first frame is not READY")
                self.ready = True
                self._size = 0
                continue
            if flags & _COMMAND:
                raise Breach("a command among messages")
            self._frames.append(frame)
            if flags & _MORE:
                if len(self._frames) == _FRAMES:
                    raise Breach(f"a message of more than {_FRAMES} frames")
                continue
            frames, self._frames, self._size = self._frames, [], 0
            return frames
        return None

    def _greet(self) -> bool:
        buffer = self._buffer
        if len(buffer) < _GREETING:
            return False
        if buffer[0] != 0xFF or buffer[9] != 0x7F or buffer[10] < 3 or buffer[12:32] != b"NULL".ljust(20, b"\0"):
            raise Breach("not a greeting of ZMTP 3 without a mechanism")
        del buffer[:_GREETING]
        self._greeted = True
        return True

    def _part(self) -> tuple[int, bytes] | None:
        """Return the flags (without LONG) and the body of the next frame, counted in `_size`; None if it is incomplete."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        flags = buffer[0]
        if flags > 7:
            raise Breach(f"unknown flags {flags:#x}")
        start, size = 2, buffer[1]
        if flags & _LONG:
            start = 1 + _SIZE.size
            if len(buffer) < start:
                return None
            (size,) = _SIZE.unpack_from(buffer, 1)
        if self._size + size > self._largest:
            raise Breach(f"a message of more than {self._largest} bytes")
        end = start + size
        if len(buffer) < end:
            return None
        frame = bytes(buffer[start:end])
        del buffer[:end]
        self._size += size
        return flags & ~_LONG, frame
