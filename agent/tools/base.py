"""Tools: host functions a cell can call by name."""

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any, Protocol

from agent.trajectory import ToolCall

RECORDED_CHARS = 4_000
RECORDED_CALLS = 64


class Tool(Protocol):
    """A host function. `call` gets the cell's arguments, unchecked, and returns something JSON can carry."""

    name: str
    parameters: tuple[str, ...]
    summary: str

    async def call(self, arguments: dict[str, Any]) -> Any: ...


def describe(tools: Iterable[Tool]) -> str:
    """One line a tool, for the system prompt."""
    return "\n".join(f"{tool.name}({', '.join(tool.parameters)}): {tool.summary}" for tool in tools)


class Toolbox:
    """The tools one trajectory may call, and a record of the first calls of each step. One toolbox serves one trajectory."""

    def __init__(self, tools: Iterable[Tool], timeout_s: float = 30.0) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._timeout_s = timeout_s
        self._calls: list[ToolCall] = []

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises LookupError for a tool this trajectory may not call, and whatever the tool raises."""
        started = time.perf_counter()
        ok, result = False, None
        try:
            if name not in self.tools:
                raise LookupError(f"there is no tool {name!r}; there are: {', '.join(self.tools) or 'none'}")
            async with asyncio.timeout(self._timeout_s):
                result = await self.tools[name].call(arguments)
            ok = True
            return result
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
            raise
        finally:
            if len(self._calls) < RECORDED_CALLS:
                self._record(name, arguments, result, ok, time.perf_counter() - started)

    def _record(self, name: str, arguments: dict[str, Any], result: object, ok: bool, seconds: float) -> None:
        self._calls.append(
            ToolCall(
                name=name[:100],
                arguments=json.dumps(arguments, default=str)[:RECORDED_CHARS],
                result=json.dumps(result, default=str)[:RECORDED_CHARS],
                ok=ok,
                seconds=seconds,
            )
        )

    def take_calls(self) -> list[ToolCall]:
        """The calls since this was last asked."""
        calls, self._calls = self._calls, []
        return calls
