"""Helpers that shorten texts of models, cells and servers and make them storable."""


def storable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def cut_middle(text: str, limit: int) -> str:
    """Keep head and tail, and replace the middle by a mark."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters cut]\n{text[len(text) - (limit - head) :]}"


def cut_end(text: str, chars: int) -> str:
    """The first `chars` characters, with a mark if there were more."""
    return text if len(text) <= chars else f"{text[:chars]}\n[cut here: {chars} characters]"
