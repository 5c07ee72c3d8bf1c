"""The chat APIs as routes of a server, each request answered for its session."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from nbrl.agent.recorder import messages_api, responses_api
from nbrl.agent.recorder.chat_api import ChatReply, ChatRequest, RequestError, completion, events, read_request, refusal

BODY_BYTES, BODY_S = 4 << 20, 60.0  # of one request, and for it to arrive
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Check = Callable[[web.Request], Awaitable[None]]
"""Raises RequestError for a request whose body is not to be read."""
Answer = Callable[[web.Request, ChatRequest], Awaitable[ChatReply]]
"""Returns the answer to a request. Raises RequestError."""


class ChatRoutes:
    """Answers chat completions, responses and messages as the model named `model`."""

    def __init__(self, check: Check, answer: Answer, model: str) -> None:
        self._check, self._answer, self._model = check, answer, model

    def add_to(self, app: web.Application, prefix: str) -> None:
        """Add the routes below a path, such as /sessions/{session}."""
        app.router.add_post(f"{prefix}/v1/chat/completions", self.checked(self._chat))
        app.router.add_post(f"{prefix}/v1/messages", self.checked(self._messages))
        app.router.add_post(f"{prefix}/v1/responses", self.checked(self._responses))

    def checked(self, handler: Handler) -> Handler:
        """Return a handler that answers what may be answered, and refuses the rest in the words of the API."""

        async def handled(request: web.Request) -> web.StreamResponse:
            shape = messages_api.refusal if request.path.endswith("/messages") else refusal
            try:
                await self._check(request)
                return await handler(request)
            except RequestError as error:
                return web.json_response(shape(error), status=error.status)
            except (ValueError, TypeError, LookupError, RecursionError, web.HTTPException) as error:
                wrong = RequestError(f"the request cannot be read: {type(error).__name__}")
                return web.json_response(shape(wrong), status=wrong.status)

        return handled

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = read_request(await body_of(request))
        reply = await self._answer(request, asked)
        identity = f"chatcmpl-{reply.number}"
        if not asked.stream:
            return web.json_response(completion(reply, self._model, identity))
        chunks = (f"data: {json.dumps(each)}\n\n" for each in events(reply, self._model, identity, asked.usage))
        return await _stream(request, [*chunks, "data: [DONE]\n\n"])

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        asked = messages_api.read_request(await body_of(request))
        reply = await self._answer(request, asked)
        if not asked.stream:
            return web.json_response(messages_api.message(reply, self._model))
        return await _stream(request, _named(messages_api.events(reply, self._model)))

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        asked = responses_api.read_request(await body_of(request))
        reply = await self._answer(request, asked)
        if not asked.stream:
            return web.json_response(responses_api.response(reply, self._model))
        return await _stream(request, _named(responses_api.events(reply, self._model)))

    async def models(self, *_: object) -> web.StreamResponse:
        """Answer which models there are: the one."""
        model: dict[str, Any] = {"id": self._model, "object": "model", "created": 0, "owned_by": "nbrl"}
        return web.json_response({"object": "list", "data": [model]})


async def body_of(request: web.Request) -> bytes:
    """Return the body of a request. Raises RequestError if it is too large, packed, or does not come in time."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise RequestError("the body is packed; send it without Content-Encoding", "invalid_request", 415)
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise RequestError(f"the body has more than {BODY_BYTES >> 20} MB", "too_large", 413) from None
    except TimeoutError:
        raise RequestError(f"the body has not come within {BODY_S:g} s", "timeout", 408) from None


def _named(events: Iterable[dict[str, Any]]) -> list[str]:
    """Return the chunks of a stream whose events are named."""
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]


async def _stream(request: web.Request, chunks: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk.encode())
    await response.write_eof()
    return response
