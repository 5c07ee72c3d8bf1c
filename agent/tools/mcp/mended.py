"""Answers of servers that keep to the protocol less strictly than its client wants, made so that the client takes them."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

# What a part of a known type has, as texts.
_PARTS = {"text": ("text",), "image": ("data", "mimeType"), "audio": ("data", "mimeType"), "resource_link": ("uri", "name")}


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
    if "content" in result and not isinstance(content, list):
        content = [] if content is None else [content]
    if isinstance(content, list):
        result = {**result, "content": [_part(part) for part in content]}
    return result


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    words = {key: tool[key] for key in ("name", "title", "description") if isinstance(tool.get(key), str)}
    given = tool.get("inputSchema")
    schema = {**given, "type": "object"} if isinstance(given, dict) else {"type": "object"}
    properties, required = schema.pop("properties", None), schema.pop("required", None)
    if isinstance(properties, dict):
        schema["properties"] = {key: each if isinstance(each, dict | bool) else {} for key, each in properties.items()}
    if isinstance(required, list):
        schema["required"] = list(dict.fromkeys(each for each in required if isinstance(each, str)))
    return {**words, "inputSchema": schema}


def _part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "resource":
        held = part.get("resource")
        known = (
            isinstance(held, dict) and isinstance(held.get("uri"), str) and isinstance(held.get("text", held.get("blob")), str)
        )
    else:
        known = kind in _PARTS and all(isinstance(part.get(name), str) for name in _PARTS[kind])
    return part if known else {"type": "text", "text": part if isinstance(part, str) else json.dumps(part)}
