"""The sessions of a world of one's own, on the host."""

import asyncio
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from nbrl.agent.errors import AgentError, SessionError, ToolError
from nbrl.agent.tools.base import Tool
from nbrl.agent.tools.functions import FunctionTool
from nbrl.agent.tools.sessions import Asked, GuardedSession, check_names
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra import own_code
from nbrl.infra.parse import json_value
from nbrl.tasks.environments.environment import finished
from nbrl.tasks.environments.session_thread import SessionThread
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.own import TOOL, Question, Session, Tasks, World, WorldRefuses

CHECK_S = 60.0
_TOOLS: dict[type[Session], tuple[FunctionTool, ...]] = {}


def made(key: str, place: str, settings: Mapping[str, Any]) -> Tasks:
    """Return the class at `place`, made with its settings. Raises ConfigError, in which `key` is the place of the settings."""
    module, _, name = place.partition(":")
    own_code.install()  # this may be a worker of Ray
    try:
        names = vars(importlib.import_module(module))
    except Exception as error:  # of a user's code
        raise ConfigError(
            f"{key}.place: the module {module} cannot be imported: {type(error).__name__}: {error}{own_code.where_looked(module)}"
        ) from error
    if name not in names:
        raise ConfigError(f"{key}.place: the module {module} has no {name!r}; {did_you_mean(name, list(names))}")
    if not (isinstance(names[name], type) and issubclass(names[name], Tasks)):
        raise ConfigError(f"{key}.place: {place} is no subclass of nbrl.tasks.own.Tasks or World")
    try:
        tasks: Tasks = names[name](**settings)
    except Exception as error:  # of a user's code
        raise ConfigError(f"{key}.settings: {place} refuses them: {type(error).__name__}: {error}") from error
    return tasks


@dataclass(frozen=True)
class WorldSource:
    """Opens the sessions of the world at `place`: an nbrl.agent.tools.sessions.SessionSource."""

    place: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def replayable(self) -> bool:
        return _world(self.place, self.settings).replayable

    async def open(self) -> "WorldSessions":
        return WorldSessions(await asyncio.to_thread(_world, self.place, self.settings))


class WorldSessions:
    """The sessions of one world; see nbrl.agent.tools.sessions.Sessions."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self, asked: Asked, seed: int) -> "WorldSession":
        reference = json_value(asked.reference)["reference"]
        question = Question(asked.text, reference=reference, ability=asked.ability, id=asked.id)
        thread = SessionThread()
        try:
            session = await thread.run(self._world.start, question, seed, late=_close)
            if not isinstance(session, Session):
                raise SessionError(f"start of {type(self._world).__name__} returned {type(session).__name__}, and no Session")
            return WorldSession(session, thread)
        except BaseException:
            thread.end()
            raise

    async def close(self) -> None:
        """Do nothing: a world holds nothing open besides its sessions."""


def _close(session: object) -> None:
    """Close, in its thread, a session that was started after its trajectory had given it up."""
    if isinstance(session, Session):
        closing: Any = session.close()  # type: ignore[func-returns-value]  # it may be asynchronous
        if inspect.iscoroutine(closing):
            asyncio.run(closing)


class WorldSession:
    """A session of a world of one's own, as an nbrl.agent.tools.sessions.EpisodeSession."""

    def __init__(self, session: Session, thread: SessionThread) -> None:
        self.step = 0
        self._session, self._thread = session, thread
        self.tools: Sequence[Tool] = [tool.bound(self._function(tool.name)) for tool in tools_of(type(session))]

    @property
    def done(self) -> bool:
        return bool(self._session.done)

    async def observe(self) -> str:
        text: str = await self._thread.run(self._session.observe)
        return text

    async def outcome(self, trajectory: Trajectory) -> Any:
        return await self._thread.run(self._session.outcome)

    async def close(self) -> None:
        try:
            await self._thread.run(self._session.close)
        finally:
            self._thread.end()

    def _function(self, name: str) -> Callable[..., Any]:
        method = getattr(self._session, name)

        async def call(**arguments: Any) -> Any:
            try:
                answer = to_jsonable_python(await self._thread.run(method, **arguments))
                json.dumps(answer)
                return answer
            except WorldRefuses as error:
                raise ValueError(str(error) or "the call is refused") from None
            except Exception as error:  # a ValueError of a user's code is no refusal
                raise SessionError(f"{type(self._session).__name__}.{name}: {type(error).__name__}: {error}") from error

        return call


def tools_of(kind: type[Session]) -> tuple[FunctionTool, ...]:
    """Return the tools of a class of sessions in the order of their definition, unbound. Raises ToolError."""
    if kind in _TOOLS:  # making one takes a millisecond, and a session has several
        return _TOOLS[kind]
    names = dict.fromkeys(name for each in reversed(kind.__mro__) for name in vars(each))
    methods = [(name, inspect.getattr_static(kind, name)) for name in names]
    marked = [(name, method) for name, method in methods if _is_tool(kind, name, method)]
    tools = [FunctionTool(_without_self(method), name) for name, method in marked]
    return _TOOLS.setdefault(kind, tuple(tools))


def _is_tool(kind: type[Session], name: str, method: Any) -> bool:
    """Return whether an attribute of a class of sessions is a tool. Raises ToolError where it cannot be one, or may be meant."""
    if getattr(getattr(method, "__func__", method), TOOL, False):
        if name in vars(Session):
            raise ToolError(f"{kind.__name__}.{name} cannot be a tool, for nbrl calls it itself; give the tool another name")
        if not inspect.isfunction(method):
            raise ToolError(f"{kind.__name__}.{name} is no plain method; take one with self for a tool")
        return True
    if callable(method) and any(getattr(vars(each).get(name), TOOL, False) for each in kind.__mro__):
        raise ToolError(f"{kind.__name__}.{name} replaces a tool and is none; write @tool above it, or {name} = None for no tool")
    return False


def _without_self(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the signature, annotations and docstring of a method, but for `self`."""

    @functools.wraps(method)
    async def function(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the tool of a session is bound before it is called")

    signature = inspect.signature(method)
    function.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return function


def _world(place: str, settings: Mapping[str, Any]) -> World:
    world = made("the environment", place, settings)
    if not isinstance(world, World):
        raise ConfigError(f"{place} is a World no more, but its questions need sessions; bring its code back")
    return world


def reference_of(question: Question) -> str:
    """Return the reference of a question as `WorldSessions.start` reads it."""
    return json.dumps({"reference": question.reference})


def check_session(key: str, world: World, question: Question, others: Iterable[str]) -> None:
    """Start a session of a question and end it at once. Raises ConfigError where that fails, or its tools cannot be used beside
    the `others`.
    """

    async def check() -> None:
        asked = Asked(question.id, question.text, question.ability, key, reference_of(question))
        session = await GuardedSession.start(WorldSessions(world), asked, 0, CHECK_S)
        try:
            check_names(key, others, session.tools)
            await session.observe()
            _ = session.done
            status = Status.STEP_LIMIT
            ended = Trajectory(id="", group="", sample=0, question="", ability="", status=status, answer=None, nodes=[], steps=[])
            await session.outcome(ended)
        finally:
            await session.close()

    try:
        finished(check())
    except AgentError as error:
        raise ConfigError(f"{key}: {str(error).removeprefix(f'{key}: ')}") from error
