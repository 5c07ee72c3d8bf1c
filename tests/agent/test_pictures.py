"""What the first bytes of a picture tell."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nbrl.agent.pictures import picture_kind, picture_size

MAGIC = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", *(b"RIFF\0\0\0\0WEBP" + kind for kind in (b"VP8 ", b"VP8L", b"VP8X"))]
FORMATS = [
    ("PNG", {}),
    ("GIF", {}),
    ("JPEG", {}),
    ("JPEG", {"progressive": True, "comment": b"x" * 60_000, "icc_profile": b"y" * 150_000}),
    ("WEBP", {}),
    ("WEBP", {"lossless": True}),
    ("WEBP", {"exif": b"Exif\0\0" + b"z" * 100}),
]


def file(kind: str, options: dict[str, Any], size: tuple[int, int]) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", size, "teal").save(made, kind, **options)
    return made.getvalue()


@pytest.mark.parametrize(("kind", "options"), FORMATS)
def test_the_size_of_a_picture_of_every_kind_is_read(kind: str, options: dict[str, Any]) -> None:
    for size in ((64, 48), (1, 1), (1025, 300)):
        data = file(kind, options, size)
        assert (picture_kind(data), picture_size(data)) == (f"image/{kind.lower()}", size)


@pytest.mark.parametrize(("kind", "options"), FORMATS)
def test_a_picture_that_is_cut_short_has_no_size_or_its_own(kind: str, options: dict[str, Any]) -> None:
    data = file(kind, options, (64, 48))
    assert {picture_size(data[:length]) for length in range(min(len(data), 400))} <= {None, (64, 48)}


@given(magic=st.sampled_from(MAGIC), data=st.binary(max_size=60))
def test_any_bytes_have_a_size_or_none(magic: bytes, data: bytes) -> None:
    size = picture_size(magic + data)
    assert size is None or min(size) > 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("filling", [b"\xff", b"\xff\xd0", b"\xff\xe0\x00\x02", b"\xff\xe0\x00\x00", b"\x00"])
def test_a_large_picture_of_nothing_has_no_size(filling: bytes) -> None:
    assert picture_size(b"\xff\xd8\xff" + filling * (30_000_000 // len(filling))) is None


def test_what_is_no_picture_has_no_size() -> None:
    assert [picture_size(data) for data in (b"", b"RIFF", b"%PDF-1.7" + bytes(40))] == [None] * 3
