"""Sessions of environments with a state of their own for each trajectory: a game, a shop, a database, a simulated user.

A session runs on the host and is trusted; the arguments of its calls are a model's. Of a call, a ValueError is a refusal, which
the cell reads; any other exception is an infrastructure fault, as is one of `start`, `observe` and `outcome`.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from nbrl.agent.errors import SessionError, ToolError
from nbrl.agent.tools.base import WAITED, Parameter, Tool
from nbrl.agent.tools.names import check_tool_name
from nbrl.agent.trajectory import Trajectory

T = TypeVar("T")
START_S = 120.0
OPENING_CHARS = 100_000
OUTCOME_CHARS = 1 << 20
ENDED = "the task has ended; nothing more can be done in it"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """The question of a session, with the ground truth in `reference`: JSON as it is stored, or empty."""

    id: str
    text: str
    ability: str
    environment: str
    reference: str


class EpisodeSession(Protocol):
    """The state of one trajectory. `step` is set before each cell: the number of the step whose cell makes the calls."""

    step: int

    @property
    def tools(self) -> Sequence[Tool]: ...
    @property
    def done(self) -> bool:
        """Whether the task has ended, and the trajectory with it."""
        ...

    async def observe(self) -> str:
        """Return what is added to the question; empty for nothing."""
        ...

    async def outcome(self, trajectory: Trajectory) -> Any:
        """Return JSON about how it ended, for the score; asked once, after the last call."""
        ...

    async def close(self) -> None: ...


class Sessions(Protocol):
    """The sessions of an environment in one process."""

    async def start(self, asked: Asked, seed: int) -> EpisodeSession: ...
    async def close(self) -> None: ...


class SessionSource(Protocol):
    """Opens the sessions of an environment; plain data, which runners get.

    Where it is `replayable`, the same question, seed and calls give the same answers and the same outcome.
    """

    @property
    def replayable(self) -> bool: ...

    async def open(self) -> Sessions: ...


class GuardedSession:
    """A session whose calls run one at a time, each to its end, within limits. Raises SessionError for an infrastructure fault.

    A call that its cell gave up on runs to its end before the next one begins.
    """

    def __init__(self, session: EpisodeSession, environment: str, limit_s: float) -> None:
        """Guard a session. `limit_s` bounds what is no call: the host bounds those."""
        self._session, self._environment, self._limit_s = session, environment, limit_s
        self._lock = asyncio.Lock()
        self._fault: SessionError | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self.tools: list[Tool] = [_SessionTool(tool, self) for tool in session.tools]

    @classmethod
    async def start(cls, sessions: Sessions, asked: Asked, seed: int, limit_s: float) -> "GuardedSession":
        """Start a session."""
        started = sessions.start(asked, seed)
        try:
            async with asyncio.timeout(START_S):
                return cls(await started, asked.environment, limit_s)
        except Exception as error:
            raise _fault(asked.environment, "could not start", error, START_S) from error

    @property
    def done(self) -> bool:
        """Whether the task has ended."""
        try:
            return self._session.done
        except Exception as error:
            raise _fault(self._environment, "could not say whether the task has ended", error, self._limit_s) from error

    def set_step(self, number: int) -> None:
        """Say which step's cell makes the calls from now on."""
        self._session.step = number

    async def observe(self) -> str:
        """Return what is added to the question."""
        text = await self._ask("could not say how the task begins", self._session.observe)
        if not isinstance(text, str) or len(text) > OPENING_CHARS:
            given = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
            raise SessionError(
                f"{self._environment}: observe of the session returned {given}; a text of up to {OPENING_CHARS} is needed"
            )
        return text

    async def outcome(self, trajectory: Trajectory) -> str:
        """Return the outcome as JSON, once the calls have ended."""
        given = await self._ask("could not say how the task ended", lambda: self._session.outcome(trajectory))
        try:
            text = json.dumps(given, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise SessionError(f"{self._environment}: the outcome of the session is no JSON: {error}") from error
        if len(text) > OUTCOME_CHARS:
            raise SessionError(
                f"{self._environment}: the outcome of the session has more than {OUTCOME_CHARS} characters of JSON"
            )
        return text

    async def close(self) -> None:
        """End the session, and first the calls that it still answers; a fault of that costs the trajectory nothing."""
        try:
            async with asyncio.timeout(self._limit_s):
                for call in self._calls:
                    call.cancel()
                await asyncio.gather(*self._calls, return_exceptions=True)
                await self._session.close()
        except Exception:
            _log.warning("a session of the environment %s was not closed", self._environment, exc_info=True)

    async def call(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        """Call a tool of the session. Raises ValueError where the session refuses the call."""
        begun = asyncio.Event()
        call = asyncio.create_task(self._one(tool, arguments, begun))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if not begun.is_set():
                call.cancel()
                raise asyncio.CancelledError(WAITED) from None
            call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise

    async def _one(self, tool: Tool, arguments: dict[str, Any], begun: asyncio.Event) -> Any:
        async with self._lock:
            begun.set()
            if self._fault is not None:
                raise self._fault
            if self.done:
                raise ValueError(ENDED)
            try:
                return await tool.call(arguments)
            except ValueError:
                raise
            except Exception as error:
                self._fault = _fault(self._environment, f"failed at a call of {tool.name}", error, 0.0)
                raise self._fault from error

    async def _ask(self, complaint: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return what a method of the session gives, after the call under way."""
        try:
            async with asyncio.timeout(self._limit_s), self._lock:
                if self._fault is not None:
                    raise self._fault
                return await work()
        except Exception as error:
            raise _fault(self._environment, complaint, error, self._limit_s) from error


def check_names(environment: str, others: Iterable[str], stateful: Sequence[Tool]) -> None:
    """Raises SessionError if a tool of a session has no usable name, or that of one of the `others` or another tool."""
    taken = {*others}
    for tool in stateful:
        try:
            check_tool_name(tool.name)
        except ToolError as error:
            raise SessionError(f"{environment}: its session has an unusable tool: {error}") from error
        if tool.name in taken:
            raise SessionError(
                f"{environment}: its session has the tool {tool.name!r}, and there is another one of this name; rename it, or "
                "leave the other one out of the environment's tools"
            )
        taken.add(tool.name)


class _SessionTool:
    """A tool of a session, by its guard."""

    def __init__(self, tool: Tool, guard: GuardedSession) -> None:
        self.name, self.summary, self.details, self.returns = tool.name, tool.summary, tool.details, tool.returns
        self.parameters: tuple[Parameter, ...] = tool.parameters
        self.schema: dict[str, Any] = tool.schema
        self._tool, self._guard = tool, guard

    async def call(self, arguments: dict[str, Any]) -> Any:
        return await self._guard.call(self._tool, arguments)


def _fault(environment: str, complaint: str, error: Exception, limit_s: float) -> SessionError:
    if isinstance(error, SessionError):
        return error
    reason = f"no answer within {limit_s:g} s" if isinstance(error, TimeoutError) and not str(error) else str(error)
    return SessionError(f"{environment}: its session {complaint}: {type(error).__name__}: {reason}"[:2_000])
