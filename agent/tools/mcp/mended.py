"""Answers of servers that keep to the protocol less strictly than its client wants, made so that the client takes them."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_PARTS = ("text", "image", "audio", "resource", "resource_link")


@asynccontextmanager
async def mended(transport: AbstractAsyncContextManager["TransportStreams"]) -> AsyncIterator["TransportStreams"]:
    """The transport, with `mend` applied to the results that come over it."""
    async with transport as (heard, asked):
        yield _Mended(heard), asked


class _Mended:
    """A stream of messages like `stream`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        return _message(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> "_Mended":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stream.__aexit__(*error)

    def __aiter__(self) -> "_Mended":
        return self

    async def __anext__(self) -> Any:
        return _message(await self._stream.__anext__())


def _message(item: Any) -> Any:
    result = getattr(getattr(item, "message", None), "result", None)
    if isinstance(result, dict):
        item.message.result = mend(result)
    return item


def mend(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result whose tools and contents the protocol's client accepts.

    A tool keeps its name, its words and its arguments' schema: the host checks no answer by a schema, and a schema that is none
    says nothing of the arguments. What is no tool is left out. Parts of an unknown type are their JSON.
    """
    if isinstance(tools := result.get("tools"), list):
        result = {
            **result,
            "tools": [_tool(tool) for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)],
        }
    structured, content = result.get("structuredContent"), result.get("content")
    if structured is not None:
        content = content if isinstance(content, list) else []
        result = {**result, "structuredContent": structured if isinstance(structured, dict) else {"result": structured}}
    if isinstance(content, list):
        result = {**result, "content": [_part(part) for part in content]}
    return result


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    words = {key: tool[key] for key in ("name", "title", "description") if isinstance(tool.get(key), str)}
    given = tool.get("inputSchema")
    schema = {**given, "type": "object"} if isinstance(given, dict) else {"type": "object"}
    for key, kind in (("properties", dict), ("required", list)):
        if not isinstance(schema.get(key), kind):
            schema.pop(key, None)
    return {**words, "inputSchema": schema}


def _part(part: Any) -> Any:
    known = isinstance(part, dict) and part.get("type") in _PARTS
    return part if known else {"type": "text", "text": part if isinstance(part, str) else json.dumps(part)}
