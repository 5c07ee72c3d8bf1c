"""Reads the kind and the size of a picture from the first bytes of a file. They may be hostile: nothing is decoded."""

_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_SEGMENTS = 4096  # of a JPEG file, looked at for its size; a file has some hundreds at most
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of segments with the size
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers of segments without a length


def picture_kind(data: bytes) -> str | None:
    """Return the media type of a PNG, JPEG, GIF or WebP file; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _KINDS.items() if data.startswith(magic)), None)


def picture_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels that the header of a PNG, JPEG, GIF or WebP file names; None where it names none."""
    match picture_kind(data):
        case "image/png":
            sides = _big(data, 16, 4), _big(data, 20, 4)
        case "image/jpeg":
            sides = _jpeg(data)
        case "image/gif":
            sides = _little(data, 6, 2), _little(data, 8, 2)
        case "image/webp":
            sides = _webp(data)
        case _:
            return None
    return sides if all(sides) else None


def _jpeg(data: bytes) -> tuple[int, int]:
    """Return the size in the first frame's segment; zeros if there is none before the pixels."""
    at = 2
    for _ in range(_SEGMENTS):
        if _big(data, at, 1) != 0xFF:
            break
        marker = _big(data, at + 1, 1)
        if marker in _FRAMES:
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        if marker == 0xFF:  # filled up before the marker
            at += 1
        elif marker in _BARE:
            at += 2
        elif marker in (0xD9, 0xDA) or (length := _big(data, at + 2, 2)) < 2:  # the end, or the pixels
            break
        else:
            at += 2 + length
    return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X" if len(data) >= 30:
            return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
        case b"VP8L" if data[20:21] == b"\x2f" and len(data) >= 25:
            bits = _little(data, 21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
    return 0, 0


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_bytes(data, at, size), "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_bytes(data, at, size), "little")


def _bytes(data: bytes, at: int, size: int) -> bytes:
    """Return the bytes there; none where the file ends before."""
    return data[at : at + size] if at + size <= len(data) else b""
