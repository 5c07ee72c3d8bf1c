"""Serves the chat API to programs, each request at the address of its trajectory: /sessions/ID/v1/chat/completions."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

from nbrl.agent.recorder.chat_api import ChatReply, ChatRequest, RequestError, read_object
from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.recorder.routes import BODY_BYTES, ChatRoutes, body_of
from nbrl.agent.recorder.tool_server import ToolServer
from nbrl.agent.text import storable

IDLE_S = 30.0  # after which a connection is closed
LINGER_S = 1.0  # for requests in flight, at the end
REQUESTS_PER_S = 50.0  # of one program, refused ones included


class Pace:
    """Lets so many requests a second through, after a burst of one second's worth; further ones wait."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._due = per_s, 0.0

    async def wait(self) -> None:
        """Wait for the turn of a request."""
        now = time.monotonic()
        self._due = max(self._due, now - 1.0) + 1 / self._per_s
        if self._due > now:
            await asyncio.sleep(self._due - now)


class RecordingServer:
    """Answers by the recorder of the address. An address holds 128 random bits, so no program can guess another's."""

    def __init__(self, model: str = "policy") -> None:
        self._recorders: dict[str, Recorder] = {}
        self._tools: dict[str, ToolServer] = {}
        self._paces: dict[str, Pace] = {}
        app, routes = web.Application(client_max_size=BODY_BYTES), ChatRoutes(self._check, self._reply, model)
        routes.add_to(app, "/sessions/{session}")
        app.router.add_get("/sessions/{session}/v1/models", routes.checked(routes.models))
        app.router.add_post("/sessions/{session}/mcp", routes.checked(self._mcp))
        app.router.add_post("/sessions/{session}/answer", routes.checked(self._answer))
        self._runner = runner_of(app)

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
        self._recorders[session], self._tools[session], self._paces[session] = recorder, tools, Pace(REQUESTS_PER_S)
        try:
            yield f"/sessions/{session}"
        finally:
            recorder.close()
            del self._recorders[session], self._tools[session], self._paces[session]

    async def _check(self, request: web.Request) -> None:
        if (session := request.match_info["session"]) in self._paces:
            await self._paces[session].wait()
        self._recorder_of(request).check()

    async def _reply(self, request: web.Request, asked: ChatRequest) -> ChatReply:
        return await self._recorder_of(request).reply(asked)

    def _recorder_of(self, request: web.Request) -> Recorder:
        recorder = self._recorders.get(request.match_info["session"])
        if recorder is None:
            raise RequestError("there is no such session, or it has ended", "ended", 404)
        return recorder

    async def _mcp(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request)
        self._recorder_of(request)  # the session may have ended meanwhile
        answer = await self._tools[request.match_info["session"]].answer(body)
        return web.Response(status=202) if answer is None else web.json_response(answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answer = read_object(await body_of(request)).get("answer")
        if not isinstance(answer, str):
            raise RequestError('an answer is {"answer": "a text"}')
        self._recorder_of(request).answer = storable(answer)
        return web.json_response({})


def runner_of(app: web.Application) -> web.AppRunner:
    """Return what runs an application; a request whose client has gone is given up, and no answer is sampled for it."""
    return web.AppRunner(app, access_log=None, shutdown_timeout=LINGER_S, keepalive_timeout=IDLE_S, handler_cancellation=True)
