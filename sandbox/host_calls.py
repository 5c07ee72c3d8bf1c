"""The host's end of a kernel's tool channel, which answers requests one by one and survives any input."""

import asyncio
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

from nbrl.sandbox import untrusted
from nbrl.sandbox.inside.channel import LENGTH, frame
from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.share import Share

CallHandler = Callable[[dict[str, Any]], Awaitable[Any]]

_START = re.compile(rb'\{"id": (\d{1,18}),')
_log = logging.getLogger(__name__)


class _Request(NamedTuple):
    """A kernel's request; if it is malformed, it has no arguments and `fault` says what is wrong."""

    number: int = 0
    name: str = ""
    arguments: dict[str, Any] | None = None
    fault: str = ""


class HostCalls:
    """Serves the host calls of one kernel. A malformed request gets an error; an oversized one ends the channel for good.

    `tools` is the allow-list, and nothing else can be reached by a kernel; keys stay in the handlers' closures. `calls`
    counts the requests; those beyond `calls_per_kernel` are refused. Calls of `uncounted` names only wait for others.
    """

    def __init__(self, settings: KernelLimits) -> None:
        self._settings = settings
        self._due = 0.0
        self._share = Share()
        self.tools: Mapping[str, CallHandler] = {}
        self.uncounted: Collection[str] = ()
        self.calls = 0

    async def serve(self, channel: socket.socket) -> None:
        """Answer until the kernel closes its end. A new request means that the cell gave up on the previous one.

        This takes over the channel from its owner: if another closed it while the event loop watches its number, the loop
        would mistake the next kernel's descriptor of the same number for it.
        """
        own = socket.socket(fileno=channel.detach())
        own.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=own)
        running: asyncio.Task[None] | None = None
        try:
            while True:
                await self._pace()
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if size > self._settings.call_bytes:
                    return
                request = await reader.readexactly(size)
                await _stop(running)
                with self._share.spend():
                    running = asyncio.create_task(self._respond(_parse(request), writer))
                # Let the response begin even if the next request has already arrived.
                await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            await _stop(running)

    async def _pace(self) -> None:
        """Wait so that reading stays within `calls_per_s`, after a burst of one second's worth, and within this kernel's share
        of the event loop's time; further requests wait in the socket."""
        now = time.monotonic()
        self._due = max(self._due, now - 1.0) + 1 / self._settings.calls_per_s
        wait = max(self._due - now, self._share.wait())
        if wait > 0:
            await asyncio.sleep(wait)

    async def _respond(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        self.calls += request.name not in self.uncounted
        answer: dict[str, Any] = {}
        try:
            answer = await self._answer(request)
            with self._share.spend():
                data = self._encode(request.number, request.name, answer)
            # Drain first, so that for a kernel that never reads only one answer is held, not one per request.
            await writer.drain()
            writer.write(data)
        finally:
            with self._share.spend():
                del request, answer

    def _encode(self, number: int, name: str, answer: dict[str, Any]) -> bytes:
        try:
            data = frame({"id": number, **answer})
        except (TypeError, ValueError, RecursionError) as error:
            return frame({"id": number, "error": f"{name}: the answer is not JSON: {error}"})
        if len(data) > self._settings.call_bytes:
            size, limit = len(data), self._settings.call_bytes
            return frame({"id": number, "error": f"{name}: the answer takes {size} bytes, {limit} are allowed"})
        return data

    async def _answer(self, request: _Request) -> dict[str, Any]:
        name = request.name
        if request.arguments is None:
            return {"error": f"host_call: {request.fault}"}
        if self.calls > self._settings.calls_per_kernel:
            return {"error": f"{name}: no host calls left, {self._settings.calls_per_kernel} were allowed"}
        handler = self.tools.get(name)
        if handler is None:
            return {"error": f"there is no tool {name!r}; there are: {', '.join(self.tools) or 'none'}"}
        try:
            async with asyncio.timeout(self._settings.call_timeout_s):
                return {"result": await self._share.steps(handler(request.arguments))}
        except TimeoutError:
            return {"error": f"{name}: no answer within {self._settings.call_timeout_s:g} s"}
        except Exception as error:
            # The cell gets the type and the message, never the host's traceback.
            _log.debug("host call %s failed", name, exc_info=True)
            return {"error": f"{name}: {type(error).__name__}: {error}"[:2000]}


def _parse(data: bytes) -> _Request:
    garbled = _Request(fault="the request is not {id, name, arguments}")
    try:
        request = untrusted.loads(data)
        number, name, arguments = request["id"], request["name"], request["arguments"]
    except untrusted.TooManyContainers as error:
        # An honest kernel waits for the answer to its number.
        start = _START.match(data)
        return _Request(int(start[1]) if start else 0, fault=f"the request has {error}")
    except (ValueError, TypeError, KeyError, RecursionError):
        return garbled
    if not isinstance(number, int) or not isinstance(name, str) or not isinstance(arguments, dict):
        return garbled._replace(number=number if isinstance(number, int) else 0)
    return _Request(number, name[:100], arguments)


async def _stop(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
