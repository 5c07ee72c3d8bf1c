"""Text as a terminal shows it, without what a terminal obeys: progress that overwrites its line is seen as it was last."""

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_]|)")
# Lone surrogates, and the control characters a terminal obeys: all of C0 and C1 but tab and line end.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_MOVES = re.compile(r"[\r\x08\x1b]")
_PARTS = re.compile(r"\r+|\x08+|\x1b+|[^\r\x08\x1b]+")
# Of sequences those that erase, what is right of the cursor or the line, are marked by \x1b, which alone is none.
_KEPT = {"\x1b[K": "\x1b", "\x1b[0K": "\x1b", "\x1b[2K": "\r\x1b", "\x1b": "\ufffd"}


def plain(text: str) -> str:
    """Return `text` without terminal sequences, control characters and lone surrogates, safe to encode and print."""
    text = _ANSI.sub(lambda found: _KEPT.get(found[0], ""), text)
    if _MOVES.search(text):
        text = "\n".join(_line(line)[0] for line in text.split("\n"))
    return _UNPRINTABLE.sub("\ufffd", text)


def unfinished(line: str) -> str:
    """Shorten the start of a line that is still being written to what a terminal holds of it, whatever follows."""
    if not _MOVES.search(line):
        return line
    shown, at = _line(_ANSI.sub(lambda found: _KEPT.get(found[0], ""), line))
    return shown if at == len(shown) else f"{shown}\r{shown[:at]}"


def _line(text: str) -> tuple[str, int]:
    """Return what a terminal shows of one line, and where its cursor is."""
    shown: list[str] = []
    at = 0
    for part in _PARTS.findall(text):
        if part[0] == "\r":
            at = 0
        elif part[0] == "\x08":
            at = max(0, at - len(part))
        elif part[0] == "\x1b":  # as _KEPT writes it
            del shown[at:]
        else:
            shown[at : at + len(part)] = part
            at += len(part)
    return "".join(shown), at
