"""The host's end of a kernel's tool channel: it answers requests one by one and survives whatever comes over the wire."""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from sandbox.inside.channel import LENGTH, frame
from sandbox.settings import SandboxSettings

CallHandler = Callable[[str, dict[str, Any]], Awaitable[Any]]

_log = logging.getLogger(__name__)


class Broker:
    """Serves one kernel. A garbled request gets an error; an oversized one ends the channel, which cannot be resumed."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._left = settings.calls_per_kernel
        self.handler: CallHandler | None = None

    async def serve(self, channel: socket.socket) -> None:
        """Answer until the kernel closes its end. A new request means that the cell gave up on the one before."""
        reader, writer = await asyncio.open_unix_connection(sock=channel)
        running: asyncio.Task[None] | None = None
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if size > self._settings.call_bytes:
                    return
                request = await reader.readexactly(size)
                await _stop(running)
                running = asyncio.create_task(self._respond(request, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            await _stop(running)

    async def _respond(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        number, name, arguments = _parse(request)
        answer = await self._answer(name, arguments)
        try:
            data = frame({"id": number, **answer})
        except (TypeError, ValueError, RecursionError) as error:
            data = frame({"id": number, "error": f"{name}: the answer is not JSON: {error}"})
        if len(data) > self._settings.call_bytes:
            size, limit = len(data), self._settings.call_bytes
            data = frame({"id": number, "error": f"{name}: the answer takes {size} bytes, {limit} are allowed"})
        writer.write(data)
        await writer.drain()

    async def _answer(self, name: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
        if arguments is None:
            return {"error": "host_call: the request is not {id, name, arguments}"}
        if self.handler is None:
            return {"error": f"{name}: this kernel has no tools"}
        if self._left <= 0:
            return {"error": f"{name}: no host calls left, {self._settings.calls_per_kernel} were allowed"}
        self._left -= 1
        try:
            async with asyncio.timeout(self._settings.call_timeout_s):
                return {"result": await self.handler(name, arguments)}
        except TimeoutError:
            return {"error": f"{name}: no answer within {self._settings.call_timeout_s:g} s"}
        except Exception as error:
            # The cell is told the type and the message, never the host's traceback.
            _log.debug("host call %s failed", name, exc_info=True)
            return {"error": f"{name}: {type(error).__name__}: {error}"[:2000]}


def _parse(data: bytes) -> tuple[int, str, dict[str, Any] | None]:
    """The number, name and arguments of a request; None for arguments when it is garbled."""
    try:
        request = json.loads(data)
        number, name, arguments = request["id"], request["name"], request["arguments"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0, "", None
    if not (isinstance(number, int) and isinstance(name, str) and isinstance(arguments, dict)):
        return 0, "", None
    return number, name[:100], arguments


async def _stop(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
