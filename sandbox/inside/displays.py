"""Bounds what a kernel sends of results, displays and errors, so that no message grows beyond what its client takes."""

import json
from typing import Any

from nbrl.sandbox.inside.readable import readable
from nbrl.sandbox.inside.streams import cut

_SAID = 8192  # characters of an exception's name and of what it says; the traceback has more
# What nbrl's client reads comes first: of many types the last ones are left out.
_FIRST = ("text/plain", "image/png", "text/markdown", "text/latex", "text/html")


def bound_messages(session: Any, limit: int, picture: int, message: int) -> None:
    """Cut texts that `session` sends to `limit` characters; leave out, with a note, what else does not fit.

    That is a picture of more than `picture` bytes of base64, and what would make one message larger than about `message` bytes.
    """
    send = session.send

    def bounded(content: dict[str, Any]) -> dict[str, Any]:
        if isinstance(data := content.get("data"), dict):
            content = {**content, "data": _bounded(data, limit, picture, message)}
        if "traceback" in content:  # sent twice: as an output and in the cell's reply
            lines = "\n".join(map(str, content["traceback"]))
            said = {name: cut(str(content.get(name, "")), _SAID) for name in ("ename", "evalue")}
            content = {**content, **said, "traceback": [cut(lines, limit)]}
        return content

    def send_bounded(stream: Any, kind: Any, content: Any = None, *rest: Any, **named: Any) -> Any:
        if isinstance(kind, dict):  # a whole message
            kind = {**kind, "content": bounded(kind["content"])}
        elif isinstance(content, dict):
            content = bounded(content)
        return send(stream, kind, content, *rest, **named)

    session.send = send_bounded


def _bounded(data: dict[str, Any], limit: int, picture: int, room: int) -> dict[str, Any]:
    """Return the types that fit into `room` bytes; notes in the plain text replace the others."""
    kept: dict[str, Any] = {}
    notes = []
    if (text := readable(data)) is not None:
        data = {**data, "text/plain": text}
    for kind in sorted(data, key=lambda kind: _FIRST.index(kind) if kind in _FIRST else len(_FIRST)):
        value = data[kind]
        if isinstance(value, str) and not kind.startswith("image/"):
            value = cut(value, limit)
        size = len((value if isinstance(value, str) else json.dumps(value, default=str)).encode())
        allowed = min(room, picture) if kind.startswith("image/") else room
        if size > allowed:
            notes.append(f"[{kind} left out: it takes {size} bytes, {allowed} are allowed]")
            continue
        kept[kind] = value
        room -= size
    if notes:
        kept["text/plain"] = "\n".join([*filter(None, [kept.get("text/plain")]), *notes])
    return kept
