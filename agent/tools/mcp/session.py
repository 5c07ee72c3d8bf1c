"""A session with a Model Context Protocol server, by the protocol's own client."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from nbrl.agent.errors import SessionError
from nbrl.agent.http.json_service import ServiceError, without
from nbrl.agent.tools.mcp.mended import mended
from nbrl.agent.tools.mcp.transport import ANSWER_BYTES, Keep, bounded, program
from nbrl.agent.tools.settings import McpSettings

if TYPE_CHECKING:
    import httpx2
    import mcp

T = TypeVar("T")
PAGES = 50
ERROR_CHARS = 2_000
KEY_CHARS = 8


class McpSession:
    """A session, opened when it is first asked and ended by `close`.

    The client lives in a task of its own, as it must be left where it was entered. A session that is lost fails the calls under
    way and is opened again at the next one, unless it is opened `once`: its server's state is lost with it. Every method but
    `close` raises ServiceError, and SessionError where a session that is opened once is lost, or cannot be opened.
    """

    def __init__(self, name: str, settings: McpSettings, keep: Keep | None = None, once: bool = False) -> None:
        self.name, self._settings, self._keep, self._once = name, settings, keep, once
        self._lost = SessionError if once else ServiceError
        self._opened, self._remembered = False, bool(settings.command)
        self._lock = asyncio.Lock()
        self._client: mcp.Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._end = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether the session is open."""
        return self._client is not None and self._task is not None and not self._task.done()

    @property
    def remembered(self) -> bool:
        """Whether the server keeps anything of this session: a program may, and an endpoint that gave it an identifier."""
        return self._remembered

    async def open(self) -> None:
        """Open the session, if it is not."""
        await self._connected()

    async def tools(self) -> "list[mcp.Tool]":
        """Return all tools of the server."""

        async def list_all(client: "mcp.Client") -> "list[mcp.Tool]":
            tools: list[mcp.Tool] = []
            cursor: str | None = None
            for _ in range(PAGES):
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
            return tools

        return await self._ask(list_all)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Call a tool; return its text or, where that says no more, its structured answer; both as a dict where they differ."""
        result = await self._ask(lambda client: client.call_tool(tool, arguments))
        text = "\n".join(map(_text, result.content))
        if result.is_error:
            raise ServiceError(self._redacted(text)[:ERROR_CHARS] or f"{tool} failed and did not say why")
        structured = result.structured_content
        if not structured:
            return self._redacted(text)
        answer = structured["result"] if list(structured) == ["result"] else structured
        if not _says(list(map(_text, result.content)), answer, structured):
            answer = {"text": text, "structured": answer}
        return without(answer, self._secrets())

    async def close(self) -> None:
        """End the session, and the server if it was started here."""
        async with self._lock:
            await self._drop()

    async def _ask(self, work: Callable[["mcp.Client"], Awaitable[T]]) -> T:
        client = await self._connected()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await work(client)
        except TimeoutError:
            raise ServiceError(f"the MCP server {self.name} did not answer within {self._settings.timeout_s:g} s") from None
        except Exception as error:
            lost = _lost(error)
            if lost:
                async with self._lock:
                    if self._client is client:
                        await self._drop()
            raise (self._lost if lost else ServiceError)(
                f"the MCP server {self.name} did not answer: {self._reason(error)}"
            ) from None

    async def _connected(self) -> "mcp.Client":
        async with self._lock:
            if self._client is not None and self.alive:
                return self._client
            await self._drop()
            if self._once and self._opened:
                raise SessionError(f"the session with the MCP server {self.name} is lost, and what it kept with it")
            self._opened = True
            ready: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
            self._end = asyncio.Event()
            self._task = asyncio.create_task(self._live(ready, self._end))
            try:
                either: list[asyncio.Future[Any]] = [ready, self._task]
                await asyncio.wait(either, timeout=self._settings.timeout_s, return_when="FIRST_COMPLETED")
            except asyncio.CancelledError:
                self._task.cancel()
                raise
            if ready.done():
                self._client = ready.result()
                return self._client
            self._task.cancel()
            (ended,) = await asyncio.gather(self._task, return_exceptions=True)
            silent = f"no answer within {self._settings.timeout_s:g} s"
            reason = self._reason(ended) if isinstance(ended, Exception) else silent
            raise self._lost(f"the MCP server {self.name} cannot be reached: {reason}")

    async def _live(self, ready: "asyncio.Future[mcp.Client]", end: asyncio.Event) -> None:
        import mcp

        async with AsyncExitStack() as held:
            transport = await self._transport(held)
            mode = "legacy" if self._once and self._settings.url else "auto"  # newer versions have no sessions over HTTP
            client = await held.enter_async_context(mcp.Client(mended(transport), cache=None, mode=mode))
            # The schema of an answer is a promise to us: one that is not kept is no fault of the session, nor of the answer.
            client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
            ready.set_result(client)
            await end.wait()

    async def _transport(self, held: AsyncExitStack) -> Any:
        """Return the client's transport; `held` keeps open what it needs."""
        if self._settings.command:
            return program(
                self._settings.command, {name: self._variable(name) for name in self._settings.environment}, self._keep
            )
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        headers = {header: self._variable(name) for header, name in self._settings.headers.items()}
        http = httpx2.AsyncClient(
            headers={**headers, "Accept-Encoding": "identity"},
            timeout=self._settings.timeout_s,
            event_hooks={"response": [bounded, self._note]},
        )
        await held.enter_async_context(http)
        return streamable_http_client(self._settings.url, http_client=http, max_sse_event_size=ANSWER_BYTES)

    async def _note(self, response: "httpx2.Response") -> None:
        """Note whether the server gives the session an identifier."""
        self._remembered |= "mcp-session-id" in response.headers

    def _variable(self, name: str) -> str:
        value = os.environ.get(name, "")
        if not value:
            raise ServiceError(f"set {name} in the environment of the host")
        return value

    async def _drop(self) -> None:
        """End the session, if there is one; the lock must be held."""
        task, self._task, self._client = self._task, None, None
        if task is not None:
            self._end.set()
            await asyncio.wait([task], timeout=self._settings.timeout_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _reason(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return self._redacted(str(error) or type(error).__name__)[:300]

    def _redacted(self, text: str) -> str:
        """Return the text without the values of the variables that the server was given."""
        for value, name in self._secrets().items():
            text = text.replace(value, name)
        return text

    def _secrets(self) -> dict[str, str]:
        """Return the values of those variables, each with its replacement. Shorter ones are ordinary words, no keys."""
        named = (*self._settings.environment, *self._settings.headers.values())
        return {value: f"[{name}]" for name in named if len(value := os.environ.get(name, "")) >= KEY_CHARS}


def _text(part: "mcp.types.ContentBlock") -> str:
    """Return a part of an answer as text; of a picture, a sound or other bytes only what it is."""
    match part.type:
        case "text":
            return part.text
        case "resource":
            from mcp.types import TextResourceContents

            return part.resource.text if isinstance(part.resource, TextResourceContents) else f"<resource {part.resource.uri}>"
        case "resource_link":
            return f"{part.title or part.name} <{part.uri}>"
        case kind:
            return f"<{kind}>"


def _says(texts: list[str], answer: Any, structured: Any) -> bool:
    """Return whether the parts of text repeat the structured answer: nothing, the same, its JSON, or each of its items."""
    if not any(map(str.strip, texts)) or _same(texts, [answer]) or _same(texts, [structured]):
        return True
    return isinstance(answer, list) and _same(texts, answer)


def _same(texts: list[str], values: list[Any]) -> bool:
    return len(texts) == len(values) and all(
        text == value or _json(text) == value for text, value in zip(texts, values, strict=True)
    )


def _json(text: str) -> Any:
    """Return the value of a JSON text; of any other text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


async def _unchecked(name: str, result: "mcp.types.CallToolResult") -> None:
    """Accept any structured answer."""


def _lost(error: Exception) -> bool:
    """Return whether the session cannot be used any more; a refusal, or a wrong answer to one call, does not end it."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST

    if not isinstance(error, MCPError):
        return not isinstance(error, ValueError | RuntimeError)  # an answer against the protocol, or one we cannot give
    return error.code in (CONNECTION_CLOSED, INVALID_REQUEST) and not error.message.startswith("SSE stream failed")
