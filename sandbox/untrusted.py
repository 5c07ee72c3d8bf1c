"""Parses JSON from a kernel on the host's event loop, which is blocked meanwhile."""

import json
from typing import Any

# Three bytes of JSON can take a hundred bytes of memory, which the garbage collector scans as long as they are held.
CONTAINERS = 50_000


class TooManyContainers(ValueError):  # noqa: N818  (it names what is wrong with the JSON)
    """JSON with too many lists and objects."""


def loads(data: bytes) -> Any:
    """Parse `data`. Raises ValueError, TooManyContainers (before anything is parsed) or RecursionError."""
    # Not left to json, which would also take UTF-16, where a quote's byte may be half of another character.
    text = data.decode("utf-8", "surrogatepass")
    if _brackets(text) > CONTAINERS and _brackets(_without_strings(text)) > CONTAINERS:
        raise TooManyContainers(f"more than {CONTAINERS} lists and objects")
    return json.loads(text)


def _brackets(text: str) -> int:
    return text.count("[") + text.count("{")


def _without_strings(text: str) -> str:
    """Return the text outside of strings, up to the first place where `text` is not JSON."""
    return "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
