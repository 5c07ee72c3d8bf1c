"""Reads bodies of HTTP answers within a limit, whatever the other side sends."""

import zlib
from collections.abc import AsyncIterator

_STEP = 1 << 16


class TooLargeError(Exception):
    """A body is larger than allowed."""


class EncodingError(Exception):
    """A body has an unknown or broken content encoding."""


async def body(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> bytes:
    """Return the decoded body, without holding much more than `limit` bytes. Raises TooLargeError or EncodingError."""
    unpack = _Unpacker(encoding)
    data = bytearray()
    async for chunk in chunks:
        while chunk:
            data += unpack(chunk)
            if len(data) > limit:
                raise TooLargeError(f"it is larger than {limit} bytes")
            chunk = unpack.rest
    return bytes(data + unpack.finish())


class _Unpacker:
    """Unpacks a stream in bounded steps: what a call leaves over is in `rest`."""

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise EncodingError(f"it is packed as {name[:40]!r}")
        self._inflate = None if name in ("", "identity") else zlib.decompressobj(wbits=47)
        self.rest = b""

    def __call__(self, chunk: bytes) -> bytes:
        if self._inflate is None:
            return chunk
        try:
            data = self._inflate.decompress(chunk, _STEP)
        except zlib.error as error:
            raise EncodingError(f"it is badly packed: {error}") from None
        # At the end of the stream nothing more is unpacked, whatever follows it.
        self.rest = b"" if self._inflate.eof else self._inflate.unconsumed_tail
        return data

    def finish(self) -> bytes:
        """The few bytes that the last step held back."""
        return b"" if self._inflate is None else self._inflate.flush()
