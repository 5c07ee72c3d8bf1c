"""The chat API of OpenAI, as a server reads and writes it."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nbrl.agent.text import storable

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGES, CALLS, STOPS, STOP_CHARS = 2_000, 1_000, 16, 200
DEPTH = 64
CONTAINERS = 100_000  # brackets of a body, whose objects would take long to make
NEEDS: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "logprobs": (None, False),
    "tool_choice": (None, "auto", "none"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "logit_bias": (None, {}),
    "functions": (None, []),
}
"""Parameters that would change the answer, and what they may be. Those of sampling are the run's, whatever a request says."""

Finish = Literal["stop", "length", "tool_calls"]


class RequestError(Exception):
    """A request that is refused, with the status of HTTP and a code of the API."""

    def __init__(self, message: str, code: str = "invalid_request", status: int = 400) -> None:
        super().__init__(message)
        self.code, self.status = code, status


@dataclass(frozen=True)
class ChatRequest:
    """A conversation to answer. Texts are storable; `tools` are as the template gets them."""

    messages: list[dict[str, Any]]
    tools: list[Any] = field(default_factory=list)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False  # whether a stream ends with the usage
    size: int = field(default=0, compare=False)  # bytes of its body


@dataclass(frozen=True)
class ChatReply:
    """An answer: its text without thought and calls of tools, and how many tokens it took."""

    number: int
    text: str
    thought: str
    tool_calls: list[dict[str, Any]]
    finish: Finish
    prompt_tokens: int
    tokens: int


def read_request(body: bytes) -> ChatRequest:
    """Read the body of a request. Raises RequestError."""
    return request_of(read_object(body), len(body))


def request_of(given: Mapping[str, Any], size: int) -> ChatRequest:
    """Return the request in an object that took `size` bytes. Raises RequestError."""
    for name, allowed in NEEDS.items():
        if given.get(name) not in allowed:
            raise RequestError(f"{name} is {json.dumps(given[name])[:80]}; this server takes {_listed(allowed)}")
    messages = given.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= MESSAGES:
        raise RequestError(f"messages is no list of 1 to {MESSAGES} messages")
    limit = given.get("max_completion_tokens") or given.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise RequestError("max_tokens is no number above 0")
    stop = given.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stops, list)
        or len(stops) > STOPS
        or not all(isinstance(each, str) and 0 < len(each) <= STOP_CHARS for each in stops)
    ):
        raise RequestError(f"stop is no text, nor a list of at most {STOPS} texts, of at most {STOP_CHARS} characters each")
    tools = objects_in(given, "tools")
    options = given.get("stream_options")
    return ChatRequest(
        [_message(message) for message in messages],
        [] if given.get("tool_choice") == "none" else as_text(tools),
        limit,
        tuple(storable(each) for each in stops),
        given.get("stream") is True,
        isinstance(options, dict) and options.get("include_usage") is True,
        size,
    )


def read_object(body: bytes) -> dict[str, Any]:
    """Return the object of a request's body. Raises RequestError."""
    if body.count(b"{") + body.count(b"[") > CONTAINERS:
        raise RequestError(f"the body has more than {CONTAINERS} brackets", "too_large", 413)
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise RequestError("the body is no object")
    return given


def objects_in(given: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the list of objects under a name, which may be missing. Raises RequestError."""
    found = given.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise RequestError(f"{name} is no list of objects")
    return found


def as_text(value: Any, depth: int = 0) -> Any:
    """Return a value with storable texts. Raises RequestError if it is nested too deep."""
    if depth > DEPTH:
        raise RequestError(f"it is nested deeper than {DEPTH} levels")
    match value:
        case str():
            return storable(value)
        case dict():
            return {storable(name): as_text(each, depth + 1) for name, each in value.items()}
        case list():
            return [as_text(each, depth + 1) for each in value]
    return value


def _message(given: Any) -> dict[str, Any]:
    """Return a message as templates take it: its content a text, the arguments of its calls objects."""
    if not isinstance(given, dict) or given.get("role") not in ROLES:
        raise RequestError(f"a message has no role of {', '.join(ROLES)}")
    role = "system" if given["role"] == "developer" else given["role"]
    message = {"role": role, "content": _content(given.get("content"))}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(given.get(name), str):
            message[name] = storable(given[name])
    calls = given.get("tool_calls") or []
    if not isinstance(calls, list) or len(calls) > CALLS or not all(isinstance(call, dict) for call in calls):
        raise RequestError(f"tool_calls of a message is no list of at most {CALLS} objects")
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _content(content: Any) -> str:
    if content is None:
        return ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise RequestError("the content of a message is neither a text nor a list of parts")
    texts = [
        part.get("text") for part in parts if isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text")
    ]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise RequestError("a message has a part that is no text; this server takes text alone")
    return storable(" ".join(map(str, texts)))  # as SGLang joins them


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("a call of a tool has no function with a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments)
        except (ValueError, RecursionError):
            read = arguments
        arguments = read if isinstance(read, dict) else arguments
    said = {"name": function["name"], "arguments": arguments}
    return {"id": as_text(str(call.get("id", ""))), "type": "function", "function": as_text(said)}


def _listed(values: Sequence[Any]) -> str:
    return " or ".join("nothing" if value is None else json.dumps(value) for value in values)


def whole(reply: ChatReply, model: str) -> dict[str, Any]:
    """Return the answer as one object."""
    message = {"role": "assistant", "content": reply.text, **_beside(reply)}
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}],
        "usage": usage(reply),
    }


def chunks(reply: ChatReply, model: str, with_usage: bool) -> Iterator[str]:
    """Yield the answer as the chunks of a stream."""
    yield from (f"data: {json.dumps(each)}\n\n" for each in _events(reply, model, with_usage))
    yield "data: [DONE]\n\n"


def named_chunks(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the chunks of a stream whose events are named by their type."""
    return (f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)


def _events(reply: ChatReply, model: str, with_usage: bool) -> Iterator[dict[str, Any]]:
    head = {"id": f"chatcmpl-{reply.number}", "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
    calls = [{"index": place, **call} for place, call in enumerate(reply.tool_calls)]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": reply.thought}] if reply.thought else []
    deltas += [{"content": word} for word in reply.text.splitlines(keepends=True)]
    deltas += [{"tool_calls": calls}] if calls else []
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]}
    if with_usage:
        yield {**head, "choices": [], "usage": usage(reply)}


def usage(reply: ChatReply) -> dict[str, int]:
    """Return how many tokens the request took."""
    total = reply.prompt_tokens + reply.tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.tokens, "total_tokens": total}


def refusal(error: RequestError) -> dict[str, Any]:
    """Return the object with which a request is refused."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}


def _beside(reply: ChatReply) -> dict[str, Any]:
    thought = {"reasoning_content": reply.thought} if reply.thought else {}
    return {**thought, **({"tool_calls": reply.tool_calls} if reply.tool_calls else {})}
