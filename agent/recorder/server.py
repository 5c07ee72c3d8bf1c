"""Serves the chat API to programs, each request at the address of its trajectory: /sessions/ID/v1/chat/completions."""

import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web

from nbrl.agent.recorder import messages_api
from nbrl.agent.recorder.chat_api import RequestError, completion, events, read_object, read_request, refusal
from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.recorder.tool_server import ToolServer
from nbrl.agent.text import storable

BODY_BYTES = 4 << 20
IDLE_S = 30.0  # after which a connection is closed
LINGER_S = 1.0  # for requests in flight, at the end
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RecordingServer:
    """Answers by the recorder of the address. An address holds 128 random bits, so no program can guess another's."""

    def __init__(self, model: str = "policy") -> None:
        self._model = model
        self._recorders: dict[str, Recorder] = {}
        self._tools: dict[str, ToolServer] = {}
        app = web.Application(client_max_size=BODY_BYTES)
        app.router.add_post("/sessions/{session}/v1/chat/completions", self._answered(self._chat))
        app.router.add_post("/sessions/{session}/v1/messages", self._answered(self._messages))
        app.router.add_post("/sessions/{session}/mcp", self._answered(self._mcp))
        app.router.add_post("/sessions/{session}/answer", self._answered(self._answer))
        app.router.add_get("/sessions/{session}/v1/models", self._answered(self._models))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=LINGER_S, keepalive_timeout=IDLE_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["RecordingServer"]:
        """Be ready for sockets until the end of the body."""
        await self._runner.setup()
        try:
            yield self
        finally:
            await self._runner.cleanup()

    @asynccontextmanager
    async def listening(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve a socket that listens until the end of the body."""
        site = web.SockSite(self._runner, listener)
        await site.start()
        try:
            yield
        finally:
            await site.stop()

    @contextmanager
    def recording(self, recorder: Recorder, tools: ToolServer) -> Iterator[str]:
        """Serve a trajectory until the end of the body; yield the path of its address, as /sessions/ID."""
        session = secrets.token_urlsafe(16)
        self._recorders[session], self._tools[session] = recorder, tools
        try:
            yield f"/sessions/{session}"
        finally:
            recorder.close()
            del self._recorders[session], self._tools[session]

    def _answered(self, handler: Callable[[web.Request, Recorder], Awaitable[web.StreamResponse]]) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            shape = messages_api.refusal if request.path.endswith("/messages") else refusal
            try:
                recorder = self._recorders.get(request.match_info["session"])
                if recorder is None:
                    raise RequestError("there is no such session, or it has ended", "ended", 404)
                recorder.check()  # before its body is read
                return await handler(request, recorder)
            except RequestError as error:
                return web.json_response(shape(error), status=error.status)
            except (ValueError, TypeError, LookupError, RecursionError, web.HTTPException) as error:
                wrong = RequestError(f"the request cannot be read: {type(error).__name__}")
                return web.json_response(shape(wrong), status=wrong.status)

        return answer

    async def _chat(self, request: web.Request, recorder: Recorder) -> web.StreamResponse:
        asked = read_request(await _body(request))
        reply = await recorder.reply(asked)
        identity = f"chatcmpl-{reply.number}"
        if not asked.stream:
            return web.json_response(completion(reply, self._model, identity))
        chunks = (f"data: {json.dumps(each)}\n\n" for each in events(reply, self._model, identity, asked.usage))
        return await _stream(request, [*chunks, "data: [DONE]\n\n"])

    async def _messages(self, request: web.Request, recorder: Recorder) -> web.StreamResponse:
        asked = messages_api.read_request(await _body(request))
        reply = await recorder.reply(asked)
        if not asked.stream:
            return web.json_response(messages_api.message(reply, self._model))
        named = messages_api.events(reply, self._model)
        return await _stream(request, [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in named])

    async def _mcp(self, request: web.Request, recorder: Recorder) -> web.StreamResponse:
        answer = await self._tools[request.match_info["session"]].answer(await _body(request))
        return web.Response(status=202) if answer is None else web.json_response(answer)

    async def _answer(self, request: web.Request, recorder: Recorder) -> web.StreamResponse:
        answer = read_object(await _body(request)).get("answer")
        if not isinstance(answer, str):
            raise RequestError('an answer is {"answer": "a text"}')
        recorder.answer = storable(answer)
        return web.json_response({})

    async def _models(self, request: web.Request, recorder: Recorder) -> web.StreamResponse:
        model: dict[str, Any] = {"id": self._model, "object": "model", "owned_by": "nbrl"}
        return web.json_response({"object": "list", "data": [model]})


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise RequestError(f"the body has more than {BODY_BYTES >> 20} MB", "too_large", 413) from None


async def _stream(request: web.Request, chunks: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk.encode())
    await response.write_eof()
    return response
