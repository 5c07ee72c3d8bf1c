"""Helpers that shorten texts of models, cells and servers and make them storable."""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

_HEADS = re.compile(r"^(?= *(?:system|user|assistant|tool): )", re.MULTILINE)  # of lines that look as if a turn began
_INDENTED = re.compile(r"^ (?= *(?:system|user|assistant|tool): )", re.MULTILINE)
_TURN = re.compile(r"^(system|user|assistant|tool): ", re.MULTILINE)


def turns_as_text(turns: Iterable[tuple[str, str]]) -> str:
    """Return turns, each a role and its text, one below the other: `role: text`. Lines of a text that look so are indented."""
    return "\n".join(f"{role}: {_HEADS.sub(' ', text)}" for role, text in turns)


def turns_in(text: str) -> list[tuple[str, str]]:
    """Return the turns that `turns_as_text` wrote; the whole as one of the user where it does not begin with one."""
    found = list(_TURN.finditer(text))
    if not found or found[0].start():
        return [("user", text)]
    ends = [each.start() - 1 for each in found[1:]] + [len(text)]
    return [(each[1], _INDENTED.sub("", text[each.end() : end])) for each, end in zip(found, ends, strict=True)]


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
