"""Gives a trajectory's tools to its program: a server of MCP that answers each message for itself."""

import asyncio
import json
from typing import Any

from nbrl.agent.recorder.chat_api import RequestError, as_text, read_object
from nbrl.agent.text import storable
from nbrl.agent.tools.base import Toolbox

VERSION = "2025-06-18"  # of the protocol, where a client says none
NO_METHOD, NO_PARAMETERS = -32601, -32602


class ToolServer:
    """The tools of one toolbox, one call at a time. A program may make as many calls as a kernel, and each may take as long and
    say as much.
    """

    def __init__(self, toolbox: Toolbox, timeout_s: float, calls: int, call_bytes: int = 1 << 20) -> None:
        self._toolbox, self._timeout_s, self._left, self._call_bytes = toolbox, timeout_s, calls, call_bytes
        self._one = asyncio.Lock()

    async def answer(self, body: bytes) -> dict[str, Any] | None:
        """Return the answer to a message; None to a notification. Raises RequestError for what is no message."""
        message = read_object(body)
        method, identity, given = message.get("method"), message.get("id"), message.get("params")
        if not isinstance(method, str):
            raise RequestError("it is no request of JSON-RPC: a text is needed as its method")
        if identity is None:
            return None
        parameters = as_text(given) if isinstance(given, dict) else {}
        head = {"jsonrpc": "2.0", "id": identity}
        match method:
            case "initialize":
                version = parameters.get("protocolVersion")
                about = {"name": "nbrl", "version": "1"}
                known = version if isinstance(version, str) else VERSION
                return {**head, "result": {"protocolVersion": known, "capabilities": {"tools": {}}, "serverInfo": about}}
            case "ping":
                return {**head, "result": {}}
            case "tools/list":
                tools = [
                    {"name": tool.name, "description": f"{tool.summary}\n{tool.details}".strip(), "inputSchema": tool.schema}
                    for tool in self._toolbox.tools.values()
                ]
                return {**head, "result": {"tools": tools}}
            case "tools/call":
                name, arguments = parameters.get("name"), parameters.get("arguments") or {}
                if not isinstance(name, str) or name not in self._toolbox.tools or not isinstance(arguments, dict):
                    named = ", ".join(self._toolbox.tools) or "none"
                    return {**head, "error": {"code": NO_PARAMETERS, "message": f"name one of the tools: {named}"}}
                text, ok = await self._called(name, arguments)
                return {**head, "result": {"content": [{"type": "text", "text": text}], "isError": not ok}}
        return {**head, "error": {"code": NO_METHOD, "message": f"there is no method {method[:80]!r} here"}}

    async def _called(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Return what a tool says, and whether it is no error."""
        self._left -= 1
        if self._left < 0:
            return "RuntimeError: this trajectory has made all the calls that it may", False
        try:
            async with self._one, asyncio.timeout(self._timeout_s):
                result = await self._toolbox.call(name, arguments)
        except TimeoutError as error:
            return str(error) or f"TimeoutError: {name} did not answer within {self._timeout_s:g} s", False
        except Exception as error:  # of a tool, as a cell reads it
            return storable(f"{type(error).__name__}: {error}"), False
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        if len(text) > self._call_bytes:
            return f"ValueError: {name} says {len(text)} characters, {self._call_bytes} are allowed", False
        return text, True
