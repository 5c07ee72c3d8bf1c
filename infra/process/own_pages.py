"""Keeps pages of other sites out of the servers of this machine: a browser would send here whatever such a page asks for.

Engines run it in an environment of their own, which has no nbrl.
"""

import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LOCAL = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(:\d+)?", re.IGNORECASE)
_ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)
_OWN_SITES = ("same-origin", "none")  # `none` is a person who typed the address
_FOLLOWED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
_POLICY_VIOLATION = 1008


def for_own_pages(application: Application, hosts: Collection[str] | None = LOCAL) -> Application:
    """Return the ASGI application, which refuses what a page of another site asks for with status 403, over HTTP and websockets.

    Such a page reaches a server by its address, or by a name of its own that leads here. So the Host of a request must be one of
    `hosts` (without them, any), its Origin that host and port, and its Sec-Fetch-Site the same origin, where it has them. A link
    to a page may be followed from anywhere: its author cannot read what is shown.
    """

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not (reason := refusal(scope, hosts)):
            return await application(scope, receive, send)
        await receive()
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        return await send({"type": "http.response.body", "body": f"{reason}\n".encode()})

    return wrapped


def refusal(scope: Message, hosts: Collection[str] | None) -> str:
    """Return why a request is refused, in a sentence; empty if it is not."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    given = headers.get("host", [])
    if len(given) != 1 or (own := _named(given[0])) is None:
        return "This server answers requests with one Host alone."
    if hosts is not None and own[0] not in hosts:
        return f"This server answers at {', '.join(hosts)} alone; open it by one of these names."
    for origin in headers.get("origin", []):
        match = _ORIGIN.fullmatch(origin)
        if match is None or _named(match[1]) != own:
            return "This server answers its own pages alone, and a page of another origin asks."
    followed = scope.get("method") == "GET" and all(headers.get(name) == [value] for name, value in _FOLLOWED.items())
    if not followed and any(site not in _OWN_SITES for site in headers.get("sec-fetch-site", [])):
        return "This server answers its own pages alone, and a page of another site asks."
    return ""


def _named(authority: str) -> tuple[str, str] | None:
    """Return the name or address and the port of `host[:port]`."""
    match = _HOST.fullmatch(authority)
    return ((match[1] or match[2]).lower(), match[3] or "") if match else None
