"""The host's end of a kernel's tool channel: it answers requests one by one and survives whatever comes over the wire."""

import asyncio
import json
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from sandbox.inside.channel import frame
from sandbox.settings import SandboxSettings

CallHandler = Callable[[str, dict[str, Any]], Awaitable[Any]]

_log = logging.getLogger(__name__)
_LENGTH = struct.Struct("!I")


class Broker:
    """Serves one kernel. A garbled request gets an error; after a broken frame the channel is closed, not repaired."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._left = settings.calls_per_kernel
        self.handler: CallHandler | None = None

    async def serve(self, channel: socket.socket) -> None:
        """Answer until the kernel closes its end."""
        reader, writer = await asyncio.open_unix_connection(sock=channel)
        try:
            while True:
                (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if size > self._settings.call_bytes:
                    return
                writer.write(await self._answer(await reader.readexactly(size)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(self, data: bytes) -> bytes:
        name = ""
        try:
            request = json.loads(data)
            name, arguments = request["name"], request["arguments"]
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            return frame({"error": "host_call: the request is not {name, arguments}"})
        name = name[:100]
        if self.handler is None:
            return frame({"error": f"{name}: this kernel has no tools"})
        if self._left <= 0:
            return frame({"error": f"{name}: no host calls left ({self._settings.calls_per_kernel} were allowed)"})
        self._left -= 1
        try:
            async with asyncio.timeout(self._settings.call_timeout_s):
                result = await self.handler(name, arguments)
            answer = frame({"result": result})
        except TimeoutError:
            return frame({"error": f"{name}: no answer within {self._settings.call_timeout_s:g} s"})
        except Exception as error:
            # The cell is told the type and the message, never the host's traceback.
            _log.debug("host call %s failed", name, exc_info=True)
            return frame({"error": f"{name}: {type(error).__name__}: {error}"[:2000]})
        if len(answer) > self._settings.call_bytes:
            return frame({"error": f"{name}: the answer takes {len(answer)} bytes, more than is allowed"})
        return answer
