"""The messages API of Anthropic, as a server reads and writes it: another form of the same requests."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from nbrl.agent.recorder.chat_api import ChatReply, ChatRequest, RequestError, named_chunks, objects_in, read_object, request_of

STOPPED = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
KINDS = {400: "invalid_request_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}


def read_request(body: bytes) -> ChatRequest:
    """Read the body of a request. Raises RequestError."""
    given = read_object(body)
    system, messages = given.get("system"), given.get("messages")
    if not isinstance(messages, list):
        raise RequestError("messages is no list")
    turns = [{"role": "system", "content": system}] if system else []
    for message in messages:
        if not isinstance(message, dict):
            raise RequestError("a message is no object")
        turns += _turns(message.get("role"), message.get("content"))
    choice = given.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") not in ("auto", "none"):
        raise RequestError("tool_choice may be auto or none here")
    asked = {
        "messages": turns,
        "tools": [_tool(tool) for tool in objects_in(given, "tools")],
        "max_tokens": given.get("max_tokens"),
        "stop": given.get("stop_sequences"),
        "stream": given.get("stream"),
        "tool_choice": choice["type"] if isinstance(choice, dict) else None,
    }
    return request_of(asked, len(body))


def _turns(role: Any, content: Any) -> list[dict[str, Any]]:
    """Return a message in the form of the chat API: the results of tools are turns of their own there."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if role not in ("user", "assistant") or not isinstance(blocks, list) or not all(isinstance(each, dict) for each in blocks):
        raise RequestError("a message is none of user or assistant with a text or a list of blocks")
    turns, calls, texts, thoughts = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]](), list[str]()
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append({"type": "text", "text": block.get("text")})
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "tool_use":
                function = {"name": block.get("name"), "arguments": block.get("input", {})}
                calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
            case "tool_result":
                turns.append({"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": block.get("content")})
            case kind:
                raise RequestError(f"a block of the type {str(kind)[:40]!r} cannot be shown to this model; leave it out")
    if texts or calls or thoughts or not turns:
        beside = {**({"tool_calls": calls} if calls else {}), **({"reasoning_content": "".join(thoughts)} if thoughts else {})}
        turns.append({"role": role, "content": texts, **beside})
    return turns


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    described = {"name": tool.get("name"), "description": tool.get("description", ""), "parameters": tool.get("input_schema", {})}
    return {"type": "function", "function": described}


def whole(reply: ChatReply, model: str) -> dict[str, Any]:
    """Return the answer as one object."""
    return {
        **_head(reply, model),
        "content": _blocks(reply),
        "stop_reason": STOPPED[reply.finish],
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": reply.tokens},
    }


def chunks(reply: ChatReply, model: str, with_usage: bool) -> Iterator[str]:
    """Yield the answer as the chunks of a stream, which always has the usage."""
    return named_chunks(_events(reply, model))


def _events(reply: ChatReply, model: str) -> Iterator[dict[str, Any]]:
    begun = {"input_tokens": reply.prompt_tokens, "output_tokens": 0}
    yield {"type": "message_start", "message": {**_head(reply, model), "content": [], "stop_reason": None, "usage": begun}}
    for index, block in enumerate(_blocks(reply)):
        empty, delta = _streamed(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stopped = {"stop_reason": STOPPED[reply.finish], "stop_sequence": None}
    yield {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": reply.tokens}}
    yield {"type": "message_stop"}


def refusal(error: RequestError) -> dict[str, Any]:
    """Return the object with which a request is refused."""
    return {"type": "error", "error": {"type": KINDS.get(error.status, "api_error"), "message": str(error)}}


def _head(reply: ChatReply, model: str) -> dict[str, Any]:
    return {"id": f"msg_{reply.number}", "type": "message", "role": "assistant", "model": model, "stop_sequence": None}


def _blocks(reply: ChatReply) -> Sequence[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.thought:
        blocks.append({"type": "thinking", "thinking": reply.thought, "signature": ""})
    if reply.text or not reply.tool_calls:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.tool_calls:
        function = call["function"]
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}
        )
    return blocks


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a block as it begins in a stream, and what is added to it."""
    match block["type"]:
        case "thinking":
            return {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
        case "text":
            return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
