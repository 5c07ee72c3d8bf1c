"""Requests of HTTP: connections with a key that stays on the host, bodies within a limit whatever the other side sends, and when
a failed request is tried again.
"""

import os
import random
import zlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx

LOCAL = ("127.0.0.1", "localhost", "::1")
_STEP = 1 << 16
RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)}) - {501, 505}
FIRST_WAIT_S = 0.5


def usable_key(variable: str | None) -> str:
    """Return the key in an environment variable; empty without a variable. Raises ValueError if it holds none, in words."""
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        raise ValueError(f"the environment variable {variable} holds no usable key; set it")
    return key


def model_client(base_url: str, key: str, connections: int, timeout_s: float) -> httpx.AsyncClient:
    """Return a client for at most `connections` requests at once. Requests of this machine to itself use no proxy."""
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=connections, keepalive_expiry=2.0),
        trust_env=urlsplit(base_url).hostname not in LOCAL,
    )


class BodyTooLargeError(Exception):
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
                raise BodyTooLargeError(f"it is larger than {limit} bytes")
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
        """Return the few bytes that the last step held back."""
        return b"" if self._inflate is None else self._inflate.flush()


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a Retry-After header requests, as a number or a date; None without a valid one."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # a year may have any number of digits
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


class Retry:
    """A budget of `retries` further tries. Waits double from half a second, each by a random part less, up to `longest_s`."""

    def __init__(self, retries: int, longest_s: float, chance: Callable[[], float] = random.random) -> None:
        self._left, self._longest, self._chance = retries, longest_s, chance
        self.tries = 1

    def next_wait(self, wanted: float | None) -> float | None:
        """Return the seconds before the next try, `wanted` if the server requests it; None without budget, or for too long a
        wait.
        """
        if self._left <= 0 or (wanted is not None and not wanted <= self._longest):
            return None
        wait = min(self._longest, FIRST_WAIT_S * 2 ** (self.tries - 1)) * (1 - self._chance() / 2) if wanted is None else wanted
        self._left -= 1
        self.tries += 1
        return wait
