"""Serves the chat APIs to agents that run elsewhere, each request of a session: at its address, or with its header.

`/sessions/ID/v1/chat/completions`, `/sessions/ID/v1/messages` and `/sessions/ID/reward`, or the same without `/sessions/ID` and
with the header X-Session-ID. Every request brings the key.
"""

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from nbrl.agent.recorder.chat_api import ChatReply, ChatRequest, RequestError, refusal
from nbrl.agent.recorder.routes import BODY_BYTES, ChatRoutes, Handler, body_of
from nbrl.agent.recorder.server import runner_of
from nbrl.infra.errors import EngineError
from nbrl.tasks.recorded.live import LiveSessions
from nbrl.tasks.recorded.reward import SessionReward

HEADER = "X-Session-ID"


@dataclass(frozen=True)
class LiveDoor:
    """Where agents reach a server, and the key that their requests bring; `hint` says where they find it."""

    host: str
    port: int
    key: str = field(repr=False)
    hint: str = field(repr=False)


class LiveServer:
    """Answers requests of live sessions."""

    def __init__(self, sessions: LiveSessions, model: str, door: LiveDoor) -> None:
        self._sessions, self._door, self._key = sessions, door, door.key.encode()
        app, routes = web.Application(client_max_size=BODY_BYTES), ChatRoutes(self._check, self._reply, model)
        for prefix in ("/sessions/{session}", ""):
            routes.add_to(app, prefix)
            app.router.add_get(f"{prefix}/v1/models", self._with_key(routes.models))
            app.router.add_post(f"{prefix}/reward", self._with_key(self._reward))
        self._runner = runner_of(app)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve until the end of the body. Raises EngineError if the address is taken."""
        host, port = self._door.host, self._door.port
        await self._runner.setup()
        try:
            try:
                await web.TCPSite(self._runner, host, port).start()
            except OSError as error:
                why = error.strerror or error
                raise EngineError(f"{host}:{port} cannot be listened on: {why}; choose another --port") from error
            yield
        finally:
            await self._runner.cleanup()

    async def _check(self, request: web.Request) -> None:
        self._check_key(request)
        self._sessions.check(session_of(request))

    async def _reply(self, request: web.Request, asked: ChatRequest) -> ChatReply:
        return await self._sessions.reply(session_of(request), asked)

    def _check_key(self, request: web.Request) -> None:
        given = (request.headers.get("Authorization", "").removeprefix("Bearer "), request.headers.get("x-api-key", ""))
        if not any(hmac.compare_digest(each.encode(errors="replace"), self._key) for each in given):
            raise RequestError("the key is missing or wrong", "invalid_api_key", 401)

    def _with_key(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                self._check_key(request)
                return await handler(request)
            except RequestError as error:
                return web.json_response(refusal(error), status=error.status)

        return answer

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        reward = SessionReward.read(await body_of(request))
        return web.json_response(await self._sessions.rewarded(session_of(request), reward))


def session_of(request: web.Request) -> str:
    """Return the name of a request's session. Raises RequestError if it names none."""
    name = request.match_info.get("session") or request.headers.get(HEADER, "")
    if not name:
        raise RequestError(f"name a session: /sessions/ID before the path, or the header {HEADER}", "no_session")
    return name
