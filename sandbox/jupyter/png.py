"""Checks PNG images of cells before any other code of the host sees them."""

import base64
import binascii
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNKS = 1024  # an encoder writes pieces of 8 KiB and more
SIDE = 8192  # pixels: a few bytes can claim to unpack into an image too large for any viewer's memory


def read_png(encoded: object, limit: int) -> bytes:
    """Return the PNG file in the base64 text `encoded`, or b"" if it is anything else or larger than `limit` bytes.

    Valid are at most 1024 complete chunks with correct checksums from IHDR to IEND, sides of 1 to 8192 pixels, and nothing
    after the end. The pixel data are not decompressed.
    """
    if not isinstance(encoded, str) or len(encoded) > limit * 3 // 2 + 4:
        return b""
    try:
        data = base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError):
        return b""
    return data if len(data) <= limit and _is_png(data) else b""


def _is_png(data: bytes) -> bool:
    if not data.startswith(_SIGNATURE):
        return False
    at = len(_SIGNATURE)
    for number in range(_CHUNKS):
        if len(data) - at < 12:
            return False
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        body, end = data[at + 8 : at + 8 + length], at + 12 + length
        if len(data) < end or zlib.crc32(body, zlib.crc32(kind)) != int.from_bytes(data[end - 4 : end], "big"):
            return False
        if number == 0 and not (kind == b"IHDR" and length == 13 and _fits(body)):
            return False
        if kind == b"IEND":
            return end == len(data)
        at = end
    return False


def _fits(header: bytes) -> bool:
    return all(0 < int.from_bytes(side, "big") <= SIDE for side in (header[:4], header[4:8]))
