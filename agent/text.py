"""Helpers that shorten texts of models, cells and servers and make them storable."""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit


def storable(text: str) -> str:
    """Return `text` with a question mark for each half of a surrogate pair, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def cut_middle(text: str, limit: int) -> str:
    """Keep head and tail, and replace the middle by a mark."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters cut]\n{text[len(text) - (limit - head) :]}"


def cut_end(text: str, chars: int) -> str:
    """Return the first `chars` characters, with a mark if there were more."""
    return text if len(text) <= chars else f"{text[:chars]}\n[cut here: {chars} characters]"


def with_files(question: str, names: Iterable[str]) -> str:
    """Return the question with the names of the files in the working folder below it, unless it ends with them."""
    listed = "\n".join(f"- {name}" for name in names)
    named = f"\n\nFiles in the working folder:\n{listed}" if listed else ""
    return question if question.endswith(named) else question + named


def check_address(url: str) -> None:
    """Raises ValueError unless `url` is an address of the web without a name or password in it."""
    try:
        usable = re.fullmatch(r"https?://[^\s@]+", url) is not None and bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:  # of a port that is no number, or too large
        usable = False
    if not usable:
        raise ValueError("give an address like https://host/path, without a name or password in it")
