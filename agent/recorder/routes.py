"""The chat APIs as routes of a server, each request answered for its session."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from aiohttp import web

from nbrl.agent.recorder import chat_api, messages_api, responses_api
from nbrl.agent.recorder.chat_api import ChatReply, ChatRequest, RequestError, refusal

BODY_BYTES, BODY_S = 4 << 20, 60.0  # of one request, and for it to arrive
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Check = Callable[[web.Request], Awaitable[None]]
"""Raises RequestError for a request whose body is not to be read."""
Answer = Callable[[web.Request, ChatRequest], Awaitable[ChatReply]]
"""Returns the answer to a request. Raises RequestError."""


class Api(Protocol):
    """A module that reads and writes one API: the answer as one object, and as the chunks of a stream."""

    def read_request(self, body: bytes) -> ChatRequest: ...
    def whole(self, reply: ChatReply, model: str) -> dict[str, Any]: ...
    def chunks(self, reply: ChatReply, model: str, with_usage: bool) -> Iterable[str]: ...


class ChatRoutes:
    """Answers chat completions, responses and messages as the model named `model`."""

    def __init__(self, check: Check, answer: Answer, model: str) -> None:
        self._check, self._answer, self._model = check, answer, model

    def add_to(self, app: web.Application, prefix: str) -> None:
        """Add the routes below a path, such as /sessions/{session}."""
        for path, api in {"chat/completions": chat_api, "messages": messages_api, "responses": responses_api}.items():
            app.router.add_post(f"{prefix}/v1/{path}", self.checked(self._by(api)))

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

    def _by(self, api: Api) -> Handler:
        """Return a handler of requests in the form of an API."""

        async def handled(request: web.Request) -> web.StreamResponse:
            asked = api.read_request(await body_of(request))
            reply = await self._answer(request, asked)
            if asked.stream:
                return await _stream(request, api.chunks(reply, self._model, asked.usage))
            return web.json_response(api.whole(reply, self._model))

        return handled

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


async def _stream(request: web.Request, chunks: Iterable[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk.encode())
    await response.write_eof()
    return response
