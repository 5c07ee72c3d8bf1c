"""The outputs of a cell: typed, in order of arrival, cut in the middle so that head and tail survive."""

from dataclasses import dataclass, field
from typing import Any, Literal

from nbrl.sandbox.jupyter.png import SIDE, read_png
from nbrl.sandbox.jupyter.terminal import plain, unfinished

_CUT = "\n… cut …\n"
_LINE = 8192  # characters of an unfinished line that may still be overwritten
_ID = 200  # characters of a display's id

Status = Literal["ok", "error", "timeout", "dead"]


@dataclass(frozen=True)
class KernelOutput:
    """One output of a cell. `name` is the stream's; `ename` and `evalue` are the error's; `image` is a PNG file or empty."""

    kind: Literal["stream", "result", "error", "display"]
    text: str
    name: str = ""
    ename: str = ""
    evalue: str = ""
    image: bytes = b""


@dataclass(frozen=True)
class Execution:
    """The status of a cell. `timeout`: interrupted, the kernel still answers. `dead`: the kernel has ended."""

    status: Status
    outputs: list[KernelOutput]
    expressions: dict[str, dict[str, Any]]
    seconds: float


def shorten(text: str, limit: int) -> str:
    """Return `text` within `limit` UTF-8 bytes; the middle of a longer one is replaced by a note."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    keep = max(0, limit - len(_CUT.encode()))
    head, tail = raw[: keep - keep // 2], raw[len(raw) - keep // 2 :]
    return head.decode(errors="ignore") + _CUT + tail.decode(errors="ignore")


@dataclass
class _Piece:
    """A growing text that keeps only its start and end, counts the characters between, and holds an unfinished line apart."""

    kind: Literal["stream", "result", "error", "display"]
    name: str = ""
    ename: str = ""
    evalue: str = ""
    image: bytes = b""
    head: str = ""
    tail: str = ""
    line: str = ""
    cut: int = 0
    display_id: str = ""
    pictured: bool = False

    @property
    def held(self) -> int:
        return len(self.head) + len(self.tail) + len(self.line)

    def add(self, text: str, keep: int) -> None:
        done, end, line = (self.line + text).rpartition("\n")
        self.line = unfinished(line)
        if len(self.line) > _LINE:
            done, end, self.line = done + end, self.line, ""
        self._put(plain(done + end), keep)

    def _put(self, text: str, keep: int) -> None:
        room = keep - len(self.head)
        if room > 0:
            self.head, text = self.head + text[:room], text[room:]
        self.tail += text
        if len(self.tail) > 2 * keep:
            self.cut += len(self.tail) - keep
            self.tail = self.tail[-keep:]

    def text(self, keep: int) -> str:
        cut, tail = self.cut, self.tail
        if cut and len(tail) > keep:
            cut, tail = cut + len(tail) - keep, tail[-keep:]
        return self.head + (_CUT if cut else "") + tail + plain(self.line)

    def clear(self) -> None:
        self.head, self.tail, self.line, self.cut, self.image = "", "", "", 0, b""


@dataclass
class Outputs:
    """Collects a cell's outputs within `limit` bytes, whatever the kernel sends; memory stays within a few limits.

    Consecutive pieces of one stream are merged. If there is too much, complete outputs in the middle are first replaced by
    a note, so that the first and the last ones survive. Of the first `images` images those within `image_bytes` are kept.
    """

    limit: int
    images: int = 0
    image_bytes: int = 0
    _pieces: list[_Piece] = field(default_factory=list)
    _held: int = 0
    _lost: int = 0
    _pictures: int = 0
    _clear: bool = False

    def add(
        self,
        kind: Literal["stream", "result", "error", "display"],
        text: str,
        *,
        name: str = "",
        ename: str = "",
        evalue: str = "",
        png: object = None,
        display_id: str = "",
    ) -> None:
        """Add an output. `png` claims to be a PNG file in base64; if invalid, too large or one too many, a note replaces it.

        With a `display_id` it can be updated.
        """
        if self._clear:
            self._forget()
        last = self._pieces[-1] if self._pieces else None
        if kind == "stream" and last is not None and last.kind == "stream" and last.name == name:
            self._held -= last.held
            piece = last
        else:
            piece = _Piece(kind, name=name, ename=shorten(plain(ename), 200), evalue=shorten(plain(evalue), 2000))
            piece.display_id = display_id[:_ID]
            self._pieces.append(piece)
        self._fill(piece, text, png)

    def update(self, display_id: str, text: str, png: object = None) -> None:
        """Replace a display; one that an earlier cell showed is shown again, by this one."""
        piece = next((each for each in self._pieces if display_id and each.display_id == display_id[:_ID]), None)
        if piece is None or self._clear:
            self.add("display", text, png=png, display_id=display_id)
            return
        self._held -= piece.held
        piece.clear()
        self._fill(piece, text, png)

    def _fill(self, piece: _Piece, text: str, png: object) -> None:
        if png is not None:
            self._pictures += not piece.pictured
            piece.pictured = True
            if self._pictures > self.images:
                text = f"{text}\n[image left out: {self.images} are kept of a cell]"
            elif not (image := read_png(png, self.image_bytes)):
                text = f"{text}\n[image left out: it is no PNG file of at most {self.image_bytes} bytes and {SIDE} pixels a side]"
            else:
                piece.image = image
        piece.add(text, self.limit)
        self._held += piece.held
        # Each output has a cost even if empty, so that a million empty ones are bounded too.
        while len(self._pieces) > 2 and self._held + 64 * len(self._pieces) > 4 * self.limit:
            gone = self._pieces.pop(len(self._pieces) // 2)
            self._held -= gone.held
            self._lost += 1

    def clear(self, wait: bool) -> None:
        """Drop the outputs so far, now or when the next output arrives (Jupyter's `clear_output`)."""
        if wait:
            self._clear = True
        else:
            self._forget()

    def _forget(self) -> None:
        self._pieces.clear()
        self._held, self._lost, self._pictures, self._clear = 0, 0, 0, False

    def finish(self) -> list[KernelOutput]:
        """Return the outputs within the limit. An output may use its share, or more if others leave theirs unused."""
        texts = [piece.text(self.limit) for piece in self._pieces]
        allowed = _shares([len(text.encode()) for text in texts], self.limit)
        outputs = []
        for piece, text, share in zip(self._pieces, texts, allowed, strict=True):
            named = {"name": piece.name, "ename": piece.ename, "evalue": piece.evalue}
            outputs.append(KernelOutput(piece.kind, shorten(text, share), **named, image=piece.image))
        if self._lost:
            note = KernelOutput("stream", f"… {self._lost} outputs cut …\n", name="stderr")
            outputs.insert((len(outputs) + 1) // 2, note)
        return outputs


def _shares(sizes: list[int], limit: int) -> list[int]:
    """Return the share of each output: small ones keep their full size, large ones share the rest equally (water-filling)."""
    shares = [0] * len(sizes)
    left = limit
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for position, index in enumerate(order):
        shares[index] = min(sizes[index], left // (len(order) - position))
        left -= shares[index]
    return shares
