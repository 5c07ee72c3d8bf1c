"""Tools: host functions a cell can call by name."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from nbrl.agent.errors import SessionError
from nbrl.agent.trajectory import ToolCall

RECORDED_CALLS = 64
"""Calls recorded of one step."""
RECORDED_CHARS = 1 << 20
"""Longest recorded answer or arguments, as JSON."""
RECORDED_TOTAL = 8 << 20
"""JSON recorded of one trajectory; what comes after is cut to `SHORT_CHARS`."""
SHORT_CHARS = 4_000
GIVEN_UP = "CancelledError: the cell gave up on it"
WAITED = "the cell gave up on it before it began"
OVER = "the trajectory has ended"
BROKEN = "the environment does not answer; the task ends here"


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool: `name` in Python, `key` in the call. A default of `...` means that the key is left out."""

    name: str
    key: str
    kind: str = "object"
    help: str = ""
    required: bool = True
    default: Any = ...

    def __str__(self) -> str:
        default = "" if self.required else f" = {'...' if self.default is ... else repr(self.default)}"
        return f"{self.name}: {self.kind}{default}"


class Tool(Protocol):
    """A host function. `call` gets the cell's arguments, unchecked, and returns something JSON can carry.

    Parameters without a default come first. An error reaches the cell by type and message, so no message holds a key. `schema` is
    the JSON schema of the arguments; `returns` is the kind of the answer, empty when it is not known.
    """

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def details(self) -> str: ...
    @property
    def parameters(self) -> tuple[Parameter, ...]: ...
    @property
    def schema(self) -> dict[str, Any]: ...
    @property
    def returns(self) -> str: ...

    async def call(self, arguments: dict[str, Any]) -> Any: ...


async def _nothing() -> None:
    """Do nothing: no call is awaited."""


def awaited(tool: Tool) -> bool:
    """Return whether cells await the calls of a tool, of which several can be under way; others are plain functions."""
    return bool(getattr(tool, "awaited", False))


def signature(tool: Tool) -> str:
    """Return the signature as written after `def`, behind `await` where a cell awaits it."""
    returns = f" -> {tool.returns}" if tool.returns else ""
    return f"{'await ' if awaited(tool) else ''}{tool.name}({', '.join(map(str, tool.parameters))}){returns}"


def describe(tools: Iterable[Tool]) -> str:
    """Return one line per tool, for the system prompt."""
    return "\n".join(f"{signature(tool)}: {' '.join(tool.summary.split())}" for tool in tools)


class Toolbox:
    """The tools one trajectory may call, and a record of the first calls of each step. One toolbox serves one trajectory.

    `fault` is the first infrastructure fault of a session, after which the trajectory cannot be scored. Calls of `stateful` tools
    are recorded however many they are, for each changes the answers of the next, and so are those of children, which have a
    budget. `end_cell` gives up what a cell awaited.
    """

    def __init__(self, tools: Iterable[Tool], stateful: Collection[str] = ()) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._stateful = stateful
        self.fault: SessionError | None = None
        self.end_cell: Callable[[], Awaitable[None]] = _nothing
        self._calls: list[ToolCall] = []
        self._unrecorded = 0
        self._room = RECORDED_TOTAL
        self._ended = False
        self._under_way: set[asyncio.Task[Any]] = set()

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool; its exceptions pass through. The caller bounds its time and passes only names of `tools`."""
        if self._ended:
            raise RuntimeError(OVER)
        started, task = time.perf_counter(), asyncio.current_task()
        ok, answer = False, ""
        if task is not None:
            self._under_way.add(task)
        try:
            result = await self.tools[name].call(arguments)
            answer = json.dumps(result)
            ok = True
            return result
        except asyncio.CancelledError as error:
            answer = json.dumps(f"CancelledError: {WAITED}" if error.args == (WAITED,) else GIVEN_UP)
            raise
        except SessionError as error:
            self.fault = self.fault or error
            answer = json.dumps(f"RuntimeError: {BROKEN}")
            raise RuntimeError(BROKEN) from None
        except Exception as error:
            answer = json.dumps(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._under_way.discard(task)  # type: ignore[arg-type]
            self._record(name, arguments, answer, ok, time.perf_counter() - started)

    async def end(self) -> None:
        """Take no call from now on, and give up those under way, which are recorded as such."""
        self._ended = True
        await self.end_cell()
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _record(self, name: str, arguments: dict[str, Any], answer: str, ok: bool, seconds: float) -> None:
        if len(self._calls) >= RECORDED_CALLS and name not in self._stateful and not awaited(self.tools[name]):
            self._unrecorded += 1
            return
        request = json.dumps(arguments, default=str)
        whole = max(len(request), len(answer)) <= RECORDED_CHARS and len(request) + len(answer) <= self._room
        if not whole:
            request, answer = request[:SHORT_CHARS], answer[:SHORT_CHARS]
        self._room -= len(request) + len(answer)
        self._calls.append(ToolCall(name=name[:100], arguments=request, result=answer, ok=ok, complete=whole, seconds=seconds))

    def take_calls(self) -> list[ToolCall]:
        """Return the recorded calls since the last call of this method."""
        calls, self._calls = self._calls, []
        return calls

    def take_unrecorded(self) -> int:
        """Return the number of calls since the last call of this method that were answered but not recorded."""
        count, self._unrecorded = self._unrecorded, 0
        return count
