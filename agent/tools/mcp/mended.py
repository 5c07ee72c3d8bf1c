"""Answers of servers that keep to the protocol less strictly than its client wants, made so that the client takes them."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.types import JSONRPCMessage

# What a part of a known type has, as texts.
_PARTS = {"text": ("text",), "image": ("data", "mimeType"), "audio": ("data", "mimeType"), "resource_link": ("uri", "name")}
# Servers name the request at the start of a message or at its end.
_ID = re.compile(rb'\A\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d{1,18})\s*,|"id"\s*:\s*(\d{1,18})\s*\}\s*\Z')


@asynccontextmanager
async def mended(transport: AbstractAsyncContextManager["TransportStreams"]) -> AsyncIterator["TransportStreams"]:
    """Yield the transport, with `mend` applied to the results that come over it."""
    async with transport as (answers, requests):
        yield _Mended(answers), requests


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
    """Return a result that the protocol's client accepts.

    A tool keeps its name, its words and its arguments' schema: the host checks no answer by a schema, and a schema that is none
    says nothing of the arguments. What is no tool is left out. A server need only have tools. Parts of an unknown type, and
    answers without any, are their JSON.
    """
    result = {key: value for key, value in result.items() if key != "_meta" or isinstance(value, dict)}
    if "protocolVersion" in result or "supportedVersions" in result:
        return _server(result)
    if isinstance(tools := result.get("tools"), list):
        named = [_tool(tool) for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
        cursor = result.get("nextCursor")
        return {**result, "tools": named, "nextCursor": None if cursor is None else str(cursor)}
    if result.get("resultType", "complete") == "complete":
        return _answer(result)
    return result


def _server(result: dict[str, Any]) -> dict[str, Any]:
    given = result.get("serverInfo")
    named = given if isinstance(given, dict) else {}
    info = {key: str(named.get(key, "")) for key in ("name", "version")}
    words = {key: value for key, value in result.items() if key != "instructions" or isinstance(value, str)}
    return {**words, "capabilities": {"tools": {}}, **({"serverInfo": info} if "protocolVersion" in result else {})}


def _answer(result: dict[str, Any]) -> dict[str, Any]:
    structured, content = result.get("structuredContent"), result.get("content")
    failed = result.get("isError") in (True, "true", "True")
    said = {key: value for key, value in result.items() if key not in ("_meta", "resultType", "isError", "content")}
    if structured is not None:
        content = content if isinstance(content, list) else []
        result = {**result, "structuredContent": structured if isinstance(structured, dict) else {"result": structured}}
    elif "content" not in result and said:
        content = [said]
    if not isinstance(content, list):
        content = [] if content is None else [content]
    return {**result, "isError": failed, "content": [_part(part) for part in content]}


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
    """Return a part with the fields that are read."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "resource" and isinstance(held := part.get("resource"), dict):
        read = {key: held[key] for key in ("uri", "text", "blob") if isinstance(held.get(key), str)}
        if "uri" in read and len(read) > 1:
            return {"type": kind, "resource": read}
    elif kind in _PARTS and all(isinstance(part.get(name), str) for name in _PARTS[kind]):
        return {key: value for key, value in part.items() if key in ("type", "title", *_PARTS[kind]) and isinstance(value, str)}
    return {"type": "text", "text": part if isinstance(part, str) else json.dumps(part)}


def readable(line: bytes) -> "JSONRPCMessage | None":
    """Return the answer in a line that the protocol's client does not accept, or an error; None if the line names no request."""
    from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCResponse

    try:
        # Half a surrogate pair is a character that cannot be sent.
        message = json.loads(json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        message = None
    match message:
        case {"id": int() | str() as asked, "error": error} if error:
            fields = error if isinstance(error, dict) else {"message": error}
            code, words = str(fields.get("code")), fields.get("message")
            number = int(code) if re.fullmatch("-?[0-9]{1,9}", code) else INTERNAL_ERROR
            fault = ErrorData(code=number, message=words if isinstance(words, str) else json.dumps(error))
            return JSONRPCError(jsonrpc="2.0", id=asked, error=fault)
        case {"id": int() | str() as asked, "result": result}:
            return JSONRPCResponse(jsonrpc="2.0", id=asked, result=result if isinstance(result, dict) else {"content": result})
    return failure(line, "the answer is no message of the protocol")


def failure(line: bytes, words: str) -> "JSONRPCMessage | None":
    """Return the error `words` as the answer to the request that a line names; None if it names none."""
    from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError

    named = _ID.search(line)
    fault = ErrorData(code=INTERNAL_ERROR, message=words)
    return JSONRPCError(jsonrpc="2.0", id=int(named[1] or named[2]), error=fault) if named else None
