"""Texts of models, cells and servers: cut, and such that they can be stored and sent."""


def storable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def cut_middle(text: str, limit: int) -> str:
    """Head and tail survive, the middle is replaced by a mark."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters cut]\n{text[len(text) - (limit - head) :]}"


def cut_end(text: str, chars: int) -> str:
    """The first `chars` characters, and a mark that says so where there were more."""
    return text if len(text) <= chars else f"{text[:chars]}\n[cut here: {chars} characters]"
