"""The servers that the settings name, and the sessions that each trajectory has with them."""

import asyncio
from collections.abc import Container
from typing import Any

from nbrl.agent.errors import SessionError, ToolError
from nbrl.agent.http.json_service import ServiceError
from nbrl.agent.tools.base import Tool
from nbrl.agent.tools.mcp.pool import SessionStock
from nbrl.agent.tools.mcp.session import McpSession
from nbrl.agent.tools.mcp.tools import McpTool, mcp_tools
from nbrl.agent.tools.mcp.transport import Keep
from nbrl.agent.tools.settings import McpSettings


class McpServer:
    """`open` before use, `close` after. Its tools are known from one session; who calls them is settled by `per`.

    A program's further sessions are with further programs. An endpoint that has no sessions is shared, whatever `per` says.
    """

    def __init__(self, name: str, settings: McpSettings, keep: Keep | None) -> None:
        self.name, self._settings, self._keep = name, settings, keep
        self._tools: list[McpTool] = []
        self._shared: McpSession | None = None
        self._stock: SessionStock | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of its tools."""
        return [tool.name for tool in self._tools]

    async def open(self, taken: Container[str]) -> None:
        """Learn its tools; none gets a name that is `taken`. Raises ToolError if it cannot be reached or lacks a tool."""
        if self._settings.per == "trajectory" and await self._open_own(taken):
            return
        self._shared = McpSession(self.name, self._settings, self._keep)
        self._tools = await self._described(self._shared, taken)

    async def _open_own(self, taken: Container[str]) -> bool:
        """Return whether trajectories have sessions of their own with it."""
        first = self._once()
        try:
            self._tools = await self._described(first, taken)
        except ToolError:
            await first.close()
            if self._settings.command:
                raise
            return False  # it may have no sessions
        if not first.remembered:
            await first.close()
            return False
        self._stock = SessionStock(self._once) if self._settings.command else SessionStock(self._once, most=0)
        if self._settings.command:
            self._stock.add(first)
        else:
            self._stock.end(first)  # it might be forgotten there before a trajectory needs it
        return True

    def _once(self) -> McpSession:
        return McpSession(self.name, self._settings, self._keep, once=True)

    async def _described(self, session: McpSession, taken: Container[str]) -> list[McpTool]:
        try:
            return mcp_tools(self.name, await session.tools(), self._settings.tools, taken)
        except (ServiceError, SessionError) as error:
            raise ToolError(str(error)) from None

    def described(self) -> list[Tool]:
        """Return its tools as they are described; none can be called."""
        return list(self._tools)

    def session(self) -> "OwnSession | McpSession":
        """Return what answers the calls of one trajectory."""
        if self._stock is not None:
            return OwnSession(self._stock)
        if self._shared is None:
            raise RuntimeError(f"the MCP server {self.name} is not open")
        return self._shared

    def bound(self, session: "OwnSession | McpSession") -> list[Tool]:
        """Return its tools, with calls that the session answers."""
        return [tool.bound(session) for tool in self._tools]

    async def close(self) -> None:
        """End its sessions."""
        if self._shared is not None:
            await self._shared.close()
        if self._stock is not None:
            await self._stock.close()


class OwnSession:
    """The session of one trajectory, taken at its first call, also where the cell gave up on that."""

    def __init__(self, stock: SessionStock) -> None:
        self._stock = stock
        self._taken: asyncio.Task[McpSession] | None = None

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Call a tool. Raises ServiceError, and SessionError where the session is lost or cannot be opened."""
        if self._taken is None:
            self._taken = asyncio.create_task(self._stock.take())
        session = await asyncio.shield(self._taken)
        return await session.call(tool, arguments)

    async def close(self) -> None:
        """End the session, in the background."""
        if self._taken is not None:
            self._taken.cancel()
            (session,) = await asyncio.gather(self._taken, return_exceptions=True)
            if isinstance(session, McpSession):
                self._stock.end(session)


class TrajectoryServers:
    """The servers as one trajectory has them."""

    def __init__(self) -> None:
        self._sessions: dict[str, OwnSession | McpSession] = {}

    def tools(self, server: McpServer) -> list[Tool]:
        """Return a server's tools, whose calls this trajectory's session answers."""
        return server.bound(self._sessions.setdefault(server.name, server.session()))

    async def aclose(self) -> None:
        """End what is this trajectory's alone."""
        for session in self._sessions.values():
            if isinstance(session, OwnSession):
                await session.close()
