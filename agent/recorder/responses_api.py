"""The responses API of OpenAI, as a server without memory reads and writes it: another form of the same requests."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from nbrl.agent.recorder.chat_api import ChatReply, ChatRequest, RequestError, named_chunks, objects_in, read_object, request_of

MESSAGE, CALL, RESULT, REASONING = "message", "function_call", "function_call_output", "reasoning"
NEEDS: Mapping[str, tuple[Any, ...]] = {
    "previous_response_id": (None,),  # a conversation is in its requests alone
    "conversation": (None,),
    "background": (None, False),
    "prompt": (None,),
    "tool_choice": (None, "auto", "none"),
    "top_logprobs": (None, 0),
}


def read_request(body: bytes) -> ChatRequest:
    """Read the body of a request. Raises RequestError."""
    given = read_object(body)
    for name, allowed in NEEDS.items():
        if given.get(name) not in allowed:
            raise RequestError(f"{name} is not known to this server; leave it out")
    form = given.get("text")
    if isinstance(form, dict) and form.get("format") not in (None, {"type": "text"}):
        raise RequestError("text.format may be text alone here")
    items = given.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RequestError("input is neither a text nor a list of items")
    head = given.get("instructions")
    turns: list[dict[str, Any]] = [{"role": "system", "content": head}] if head else []
    for item in items:
        _add(turns, item)
    asked = {
        "messages": turns,
        "tools": [_tool(tool) for tool in objects_in(given, "tools")],
        "max_tokens": given.get("max_output_tokens"),
        "stream": given.get("stream"),
        "tool_choice": given.get("tool_choice"),
    }
    return request_of(asked, len(body))


def _add(turns: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add an item to the turns of the chat API, of which one holds what the model thought, said and called in one answer."""
    kind = item.get("type", MESSAGE)
    if kind == RESULT:
        turns.append({"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": item.get("output")})
    elif kind == MESSAGE and item.get("role") != "assistant":
        turns.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == MESSAGE:
        _turn_with(turns, "content")["content"] = item.get("content")
    elif kind == REASONING:
        _turn_with(turns, "reasoning_content")["reasoning_content"] = _thought(item)
    elif kind == CALL:
        function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
        call = {"id": str(item.get("call_id", "")), "type": "function", "function": function}
        _turn_with(turns, "").setdefault("tool_calls", []).append(call)
    else:
        raise RequestError(f"an item of the type {str(kind)[:40]!r} cannot be shown to this model; leave it out")


def _turn_with(turns: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the assistant's turn that an item belongs to: the last one, unless that has what comes now or what comes after."""
    last = turns[-1] if turns else {}
    order = ("reasoning_content", "content")
    later = [*order[order.index(name) :], "tool_calls"] if name else []
    if last.get("role") != "assistant" or any(last.get(each) for each in later):
        turns.append({"role": "assistant", "content": ""})
    return turns[-1]


def _thought(item: Mapping[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise RequestError("an item of the type 'reasoning' has no texts")
    return "".join(part["text"] for part in parts)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise RequestError(f"a tool of the type {str(tool.get('type'))[:40]!r} is not here; functions of the client's own are")
    described = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": described}


def whole(reply: ChatReply, model: str) -> dict[str, Any]:
    """Return the answer as one object."""
    cut = reply.finish == "length"
    return {**_head(reply, model, "incomplete" if cut else "completed"), "output": _items(reply), "usage": _usage(reply)}


def chunks(reply: ChatReply, model: str, with_usage: bool) -> Iterator[str]:
    """Yield the answer as the chunks of a stream, which always has the usage."""
    return named_chunks(_events(reply, model))


def _events(reply: ChatReply, model: str) -> Iterator[dict[str, Any]]:
    complete = whole(reply, model)
    begun = {**_head(reply, model, "in_progress"), "output": [], "usage": None}
    unnumbered = [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}]
    for index, item in enumerate(complete["output"]):
        unnumbered += _streamed(index, item)
    unnumbered.append({"type": f"response.{complete['status']}", "response": complete})
    for number, event in enumerate(unnumbered):
        yield {**event, "sequence_number": number}


def _streamed(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of one item of the output."""
    where = {"item_id": item["id"], "output_index": index}
    empty: dict[str, Any] = {"arguments": ""} if item["type"] == CALL else {"content": []}
    yield {"type": "response.output_item.added", "output_index": index, "item": {**item, **empty, "status": "in_progress"}}
    if item["type"] == CALL:
        yield {"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **where, "name": item["name"], "arguments": item["arguments"]}
    else:
        (part,) = item["content"]
        place, kind = {**where, "content_index": 0}, part["type"]
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        more: dict[str, Any] = {"logprobs": []} if item["type"] == MESSAGE else {}
        yield {"type": f"response.{kind}.delta", **place, "delta": part["text"], **more}
        yield {"type": f"response.{kind}.done", **place, "text": part["text"], **more}
        yield {"type": "response.content_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _head(reply: ChatReply, model: str, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
    }


def _items(reply: ChatReply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.thought:
        thought = [{"type": "reasoning_text", "text": reply.thought}]
        items.append({"id": f"rs_{reply.number}", "type": REASONING, "summary": [], "content": thought, "status": "completed"})
    if reply.text or not reply.tool_calls:
        said = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        status = "incomplete" if reply.finish == "length" else "completed"
        items.append({"id": f"msg_{reply.number}", "type": MESSAGE, "role": "assistant", "content": said, "status": status})
    for number, call in enumerate(reply.tool_calls):
        function = call["function"]
        named = {"call_id": call["id"], "name": function["name"], "arguments": function["arguments"]}
        items.append({"id": f"fc_{reply.number}_{number}", "type": CALL, **named, "status": "completed"})
    return items


def _usage(reply: ChatReply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.tokens,
    }
