"""A connection to a server of OpenEnv environments: one episode, by JSON messages over a WebSocket; and its pages over HTTP.

What a server says is hostile: no more than ANSWER_BYTES of it are held, and none of its words reach a cell but observations and
the reasons of refusals.
"""

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nbrl.agent.errors import SessionError
from nbrl.infra.parse import json_value

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

ANSWER_BYTES = 4 << 20
CALL_S = 120.0
"""For one answer, after which the server is taken to hang."""
CONNECT_S, CLOSE_S = 20.0, 2.0
REASON_CHARS = 300
REFUSALS = ("VALIDATION_ERROR", "EXECUTION_ERROR")
FULL = "CAPACITY_REACHED"


class FullError(SessionError):
    """All sessions that the server has at a time are in use."""


class OpenEnvConnection:
    """One episode's connection. Raises SessionError for any fault of the server, ValueError for an action that it refuses."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket

    @classmethod
    async def open(cls, address: str) -> "OpenEnvConnection":
        """Connect to the server at an address like http://host:port."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        class DirectConnect(connect):
            """One that follows no redirect: a hostile server would choose where this machine calls."""

            def process_redirect(self, exc: Exception) -> Exception:
                return exc

        try:
            socket = await DirectConnect(
                f"ws{address.removeprefix('http')}/ws",
                proxy=None if _is_local(address) else True,
                compression=None,  # what is unpacked would be unbounded
                max_size=ANSWER_BYTES,
                max_queue=1,
                ping_interval=None,  # a server that computes is not gone; CALL_S bounds it
                open_timeout=CONNECT_S,
                close_timeout=CLOSE_S,
            )
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            raise SessionError(f"its server cannot be reached: {_reason(error)}") from error
        return cls(socket)

    async def ask(self, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the data with which the server answers a message of this kind."""
        from websockets.exceptions import WebSocketException

        message = {"type": kind} if data is None else {"type": kind, "data": data}
        try:
            async with asyncio.timeout(CALL_S):
                with suppress(WebSocketException):  # it may have said why before it went
                    await self._socket.send(json.dumps(message))
                answer = json_value(await self._socket.recv())
        except TimeoutError:
            raise SessionError(f"its server did not answer within {CALL_S:g} s") from None
        except (OSError, WebSocketException, ValueError) as error:
            raise SessionError(f"its server did not answer: {_reason(error)}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise SessionError("its server answered what is no message of the protocol")
        given: dict[str, Any] = answer["data"]
        if answer.get("type") == "error":
            raise _error(given)
        return given

    async def close(self) -> None:
        """End the episode."""
        from websockets.exceptions import WebSocketException

        with suppress(OSError, TimeoutError, WebSocketException):
            async with asyncio.timeout(CLOSE_S):
                await self._socket.send('{"type": "close"}')
        await self._socket.close()


async def page(address: str, path: str) -> dict[str, Any]:
    """Return the JSON object at a path of the server. Raises SessionError."""
    import httpx  # settings are read, and completed, without it

    from nbrl.agent.http.client import BodyTooLargeError, EncodingError, body

    try:
        async with (
            asyncio.timeout(CALL_S),
            httpx.AsyncClient(timeout=CONNECT_S, trust_env=not _is_local(address)) as client,
            client.stream("GET", address + path, headers={"Accept-Encoding": "identity"}) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise SessionError(f"its server answered {path} with status {response.status_code}")
            data = await body(response.aiter_raw(), response.headers.get("Content-Encoding", ""), ANSWER_BYTES)
        value = json_value(data)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, BodyTooLargeError, EncodingError) as error:
        raise SessionError(f"its server did not answer {path}: {_reason(error)}") from error
    if not isinstance(value, dict):
        raise SessionError(f"its server answered {path} with what is no JSON object")
    return value


def _error(said: dict[str, Any]) -> Exception:
    """Return what an error of the server means. The text of an exception of its code may name what is on the host."""
    code, faults = said.get("code"), said.get("errors")
    if code not in REFUSALS:
        return (FullError if code == FULL else SessionError)(f"its server says {str(said.get('message'))[:REASON_CHARS]!r}")
    reasons = [_fault(each) for each in faults[:3] if isinstance(each, dict)] if isinstance(faults, list) else []
    return ValueError("the environment does not take this action" + (f": {'; '.join(reasons)}" if reasons else ""))


def _fault(fault: dict[str, Any]) -> str:
    place = fault.get("loc")
    where = ".".join(map(str, place))[:100] if isinstance(place, list) else ""
    words = str(fault.get("msg"))[:REASON_CHARS]
    return f"{where}: {words}" if where else words


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:REASON_CHARS]


def _is_local(address: str) -> bool:
    from nbrl.agent.http.client import LOCAL

    return urlsplit(address).hostname in LOCAL
