"""Pictures out of a kernel: PNG files within their bytes and number, or nothing but text."""

import base64
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.sandbox.jupyter.outputs import Outputs
from nbrl.sandbox.jupyter.png import read_png
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int = 3, height: int = 2, more: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\x80" * min(width, 99)) * min(height, 99))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + more + chunk(b"IEND", b"")


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_png_file_is_taken_with_or_without_line_ends() -> None:
    assert read_png(text(png()), 10_000) == png()
    assert read_png(base64.encodebytes(png()).decode(), 10_000) == png()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        "",
        "äöü",
        "not base64!",
        text(b""),
        text(b"GIF89a"),
        text(png()[:-1]),
        text(png() + b"<script>"),
        text(png().replace(b"IDAT", b"IDAX")),
        text(png()[:8] + chunk(b"IEND", b"")),
        text(png(0, 5)),
        text(png(100_000, 5)),
        text(png(more=chunk(b"tEXt", b"") * 2000)),
        text(png(more=chunk(b"tEXt", b"x" * 20_000))),
    ],
)
def test_what_is_no_small_whole_png_file_is_nothing(wrong: Any) -> None:
    assert read_png(wrong, 10_000) == b""


@given(st.binary(max_size=200), st.integers(0, 60))
def test_a_damaged_file_is_nothing(noise: bytes, at: int) -> None:
    damaged = png()[:at] + noise + png()[at + len(noise) :]
    assert read_png(text(damaged), 10_000) in (b"", png())


def test_pictures_are_counted_and_the_others_are_text() -> None:
    outputs = Outputs(4096, images=2, image_bytes=10_000)
    for number in range(4):
        outputs.add("display", f"<Figure {number}>", png=text(png()))
    assert [bool(output.image) for output in outputs.finish()] == [True, True, False, False]
    notes = ["", "", *["\n[image left out: 2 are kept of a cell]"] * 2]
    assert [output.text for output in outputs.finish()] == [f"<Figure {number}>{note}" for number, note in enumerate(notes)]
    outputs.clear(wait=True)
    outputs.add("display", "again", png=text(png()))
    assert [output.image for output in outputs.finish()] == [png()]


def test_a_cell_shows_pictures(lab: Lab) -> None:
    show = f"from IPython.display import Image, display\nimport base64\nimage = Image(data=base64.b64decode({text(png())!r}))\n"
    lie = "display({'image/png': '<script>', 'text/plain': 'lie', 'text/html': '<script>'}, raw=True)\n"
    other = "display({'image/svg+xml': '<svg/>', 'text/plain': 'drawn'}, raw=True)\n"
    (done,) = lab.cells(f"{show}display(image)\n{lie}{other}image", images=2)
    kinds = [("display", png()), ("display", b""), ("display", b""), ("result", b"")]
    assert [(output.kind, output.image) for output in done.outputs] == kinds
    assert done.outputs[1].text.startswith("lie\n[image left out: it is no PNG file")
    assert done.outputs[2].text == "drawn\n[image/svg+xml left out: pictures are kept as PNG]"


@pytest.mark.more
def test_figures_are_shown_inline(lab: Lab) -> None:
    pytest.importorskip("matplotlib")
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    first, magic = lab.cells(draw, f"%matplotlib inline\n{draw}")
    for done in (first, magic):
        (figure,) = [output for output in done.outputs if output.kind == "display"]
        assert done.status == "ok"
        assert figure.image[12:16] == b"IHDR"
