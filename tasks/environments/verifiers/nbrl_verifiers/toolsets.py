"""The tools of a trajectory: servers of verifiers in this process, each with the state of the trajectory that calls.

In verifiers a server of tools is a process of its own. Here a server is an object of its own: what it keeps in itself and in its
state belongs to one trajectory, what it keeps in its module to all of them.
"""

import asyncio
import functools
import inspect
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from .errors import TasksetRefusalError, TooLongError, is_infrastructure

CALLING: ContextVar[Any] = ContextVar("calling")  # the trace of the trajectory that calls
# What a tool says of its arguments; the message of any other error may name paths or hold the ground truth.
SAID = (ValueError, ToolError)
FAULT_CHARS = 600


class ToolsetServer:
    """One set of tools. `name` is that of its tools' owner, `prefix` what verifiers begins their names with."""

    def __init__(self, toolset: Any) -> None:
        self.name: str = toolset.server_name or type(toolset).__name__
        _check(self.name, toolset)
        self._toolset, self._lock = toolset, asyncio.Lock()
        toolset._pull_state, toolset._push_state = self._pull, self._push
        self._with_state = toolset._with_state
        toolset._with_state = self._in_thread
        self._server = MCPServer(self.name)

    async def open(self, held: AsyncExitStack, data: Any) -> None:
        """Set it up; `held` ends it. `data` is that of the trajectory's task, None where all trajectories share it."""
        await held.enter_async_context(self._toolset._exit_stack)
        await self._toolset.setup()
        if data is not None:
            await self._toolset.setup_task(data)
        self._toolset.register(self._server)

    async def tools(self) -> list[dict[str, Any]]:
        """Return its tools as MCP describes them."""
        return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in await self._server.list_tools()]

    async def call(self, trace: Any, name: str, arguments: dict[str, Any]) -> tuple[Any, str]:
        """Return the answer of a tool, and its text. Raises TasksetRefusalError, unless another machine is away."""
        CALLING.set(trace)
        try:
            result: Any = await self._server.call_tool(name, arguments)
        except TooLongError as error:
            raise TasksetRefusalError(f"{name} took too long with these arguments") from error
        except Exception as error:
            if is_infrastructure(error):
                raise
            raise TasksetRefusalError(_said(name, error)) from error
        text = "\n".join(getattr(part, "text", f"<{part.type}>") for part in result.content)
        if result.is_error:
            raise TasksetRefusalError(text[:FAULT_CHARS] or f"{name} failed and did not say why")
        structured = result.structured_content
        if not structured:
            return text, text
        return (structured["result"] if list(structured) == ["result"] else structured), text

    def _in_thread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a tool of which one call runs at a time; a plain one in a thread, for it may wait for something."""

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            answer = await asyncio.to_thread(function, *args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        inner = self._with_state(call)

        @functools.wraps(function)
        async def one(*args: Any, **kwargs: Any) -> Any:
            async with self._lock:
                return await inner(*args, **kwargs)

        return one

    async def _pull(self) -> Any:
        return self._toolset._state_adapter.validate_json(CALLING.get().state.model_dump_json())

    async def _push(self, before: bytes) -> None:
        after = self._toolset._state_adapter.dump_json(self._toolset.state)
        if after != before:
            trace = CALLING.get()
            trace.state = type(trace.state).model_validate_json(after)


def _check(name: str, toolset: Any) -> None:
    config = toolset.config
    if getattr(config, "url", None):
        raise TasksetRefusalError(f"its tools {name} are a server at an address; name that server in rollout.tools.mcp instead")
    runtime = getattr(config, "runtime", None)
    if getattr(config, "colocated", False) or not isinstance(runtime, vf.SubprocessConfig | None):
        raise TasksetRefusalError(f"its tools {name} run in a container, and nbrl's sandbox is none of verifiers'")


def _said(name: str, error: BaseException) -> str:
    cause = error.__cause__ if isinstance(error, ToolError) and error.__cause__ is not None else error
    if isinstance(cause, ValidationError):
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in cause.errors(include_input=False)]
        return f"{name} does not take these arguments: {'; '.join(faults)}"[:FAULT_CHARS]
    if isinstance(cause, SAID) and not isinstance(cause, json.JSONDecodeError | UnicodeError):
        return str(cause)[:FAULT_CHARS] or f"{name} failed and did not say why"
    return f"{name} failed: {type(cause).__name__}"
