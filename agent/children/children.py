"""The children of one agent: what its cells call by `llm` and `agent`, run on the host."""

import asyncio
import hashlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbrl.agent.budget import ChildBudget, MeteredPolicy, Stopwatch
from nbrl.agent.children.one_answer import OneAnswer
from nbrl.agent.children.record import ChildKind, ChildRun, with_children
from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import ExhaustedError, SessionError
from nbrl.agent.kernel import Kernel
from nbrl.agent.policy import Policy
from nbrl.agent.settings import AgentSettings, ChildSettings
from nbrl.agent.text import storable, with_files
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.tools.awaited import served
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.tools.exchange import REQUEST_BYTES
from nbrl.agent.trajectory import Status, Trajectory

CHARS_OF_TOKEN = 64  # a text with more characters for each token of the context is refused before it is read
FILES = 64

Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LlmCall(_Asked):
    """What a cell asks of `llm`."""

    prompt: str = Field(min_length=1)
    max_tokens: int = Field(256, ge=1)


class AgentCall(_Asked):
    """What a cell asks of `agent`."""

    task: str = Field(min_length=1)
    context: str = ""
    files: list[Name] = Field(default=[], max_length=FILES)
    collect: list[Name] = Field(default=[], max_length=FILES)


class Files(Protocol):
    """The working folder of a kernel. Both raise ValueError for what cannot be read or written."""

    def read(self, path: str) -> bytes: ...
    def put(self, path: str, data: bytes) -> None: ...


class NoFiles:
    """The working folder of an agent that has no kernel yet, or none with files."""

    def read(self, path: str) -> bytes:
        raise ValueError(f"there is no file {path[:200]!r}")

    def put(self, path: str, data: bytes) -> None:
        raise ValueError(f"there is no folder for {path[:200]!r}")


class OpenedChild(NamedTuple):
    """What a child works with."""

    kernel: Kernel
    toolbox: Toolbox
    files: Files


OpenKernel = Callable[["Children | None", int], AbstractAsyncContextManager[OpenedChild]]
"""Opens a clean kernel of a depth, from 1, with the tools of the trajectory and, if they are given, children of its own."""


@dataclass
class _Running:
    """A child that has begun, and its trajectory once it has ended. Children are in the order in which they were called."""

    number: int
    caller: int
    kind: ChildKind
    run: Episode | OneAnswer
    made: Trajectory | None = None

    def result(self) -> ChildRun:
        return ChildRun(self.caller, self.kind, self.made or self.run.trajectory(Status.TIMEOUT))


@dataclass
class Children:
    """The children of the agent that does `task`, `depth` levels below the trajectory's own; `files` are those of its folder,
    once it has a kernel.

    `step` is the number of the step whose cell calls, and `deadline` the moment of the monotonic clock at which the agent ends;
    `watch` counts the seconds in which calls are under way. A fault of the infrastructure in a child is one of the trajectory.
    """

    task: Task
    policy: Policy
    tokenizer: Renderer
    settings: AgentSettings
    open: OpenKernel
    budget: ChildBudget
    files: Files = field(default_factory=NoFiles)
    depth: int = 0
    step: int = 0
    deadline: float = math.inf
    watch: Stopwatch = field(default_factory=Stopwatch)
    _called: int = 0
    _begun: list[_Running] = field(default_factory=list)

    @property
    def limits(self) -> ChildSettings:
        if self.settings.children is None:
            raise ValueError("the settings have no children")
        return self.settings.children

    @property
    def tools(self) -> list[Tool]:
        """Return the tools that the toolbox of the agent needs for its calls to be answered and recorded."""
        return served(self.complete, self.act)

    def joined(self, own: Trajectory) -> Trajectory:
        """Return the agent's trajectory with its children."""
        begun = sorted(self._begun, key=lambda each: each.number)
        return with_children(own, [each.result() for each in begun], self.limits.credit != "none")

    async def complete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a call of `llm`. Raises ValueError for one that makes no sense or is beyond the budget, SessionError."""
        number, step = self._take_call(), self.step
        asked = _valid(LlmCall, arguments)
        self._check_length(asked.prompt)
        with self.watch.running():
            return await self._complete(number, step, asked)

    async def _complete(self, number: int, step: int, asked: LlmCall) -> dict[str, Any]:
        task = self._task(number, storable(asked.prompt))
        completion = OneAnswer(task, self._metered, self.tokenizer, self.settings, asked.max_tokens)
        return await self._run(_Running(number, step, "llm", completion))

    async def act(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a call of `agent`. Raises as `complete` does."""
        number, step = self._take_call(), self.step
        asked = _valid(AgentCall, arguments)
        self._check_length(asked.task + asked.context)
        try:
            with self.watch.running():
                return await self._act(number, step, asked)
        except (ValueError, SessionError):
            raise
        except Exception as error:
            raise SessionError(f"an agent that a cell called failed: {type(error).__name__}: {error}") from error

    async def _act(self, number: int, step: int, asked: AgentCall) -> dict[str, Any]:
        question = "\n\n".join(part for part in (storable(asked.task), storable(asked.context)) if part)
        task = self._task(number, with_files(question, asked.files))
        nested = self._nested(task) if self.depth + 1 < self.limits.depth else None
        async with self.open(nested, self.depth + 1) as opened:
            for name in asked.files:  # one after the other: all of them may be more than this process should hold
                await asyncio.to_thread(opened.files.put, name, await asyncio.to_thread(self.files.read, name))
            episode = await asyncio.to_thread(self._episode, task, opened, nested)  # it reads the task, which may be long
            ended = await self._run(_Running(number, step, "agent", episode))
            copied = [name for name in asked.collect if await self._copied(opened.files, name)]
        return {**ended, "files": copied}

    def _episode(self, task: Task, opened: OpenedChild, nested: "Children | None") -> Episode:
        settings = self.settings.model_copy(update={"deadline_s": min(self.settings.deadline_s, self._seconds_left)})
        episode = Episode(task, self._metered, opened.kernel, opened.toolbox, self.tokenizer, settings, children=nested)
        if (tokens := episode.opening_tokens + settings.action_tokens) > settings.context_tokens:
            raise ValueError(
                f"its task and context take {tokens} tokens with an action, and {settings.context_tokens} are allowed"
            )
        return episode

    def _nested(self, task: Task) -> "Children":
        return replace(self, task=task, depth=self.depth + 1, step=0, files=NoFiles(), watch=Stopwatch(), _called=0, _begun=[])

    @property
    def _seconds_left(self) -> float:
        """Return how long a child may run from now on: no longer than the agent itself."""
        return max(0.0, min(self.budget.seconds_left, self.deadline - time.monotonic()))

    @property
    def _metered(self) -> Policy:
        return self.policy if isinstance(self.policy, MeteredPolicy) else MeteredPolicy(self.policy, self.budget)

    def _take_call(self) -> int:
        """Return the number of a call, and take it from the budget. Raises ValueError where none is left."""
        self.budget.take_call()
        self._called += 1
        return self._called - 1

    def _task(self, number: int, question: str) -> Task:
        """Return the task of a child, which has a seed of its own."""
        digest = hashlib.sha256(f"{self.task.seed}/{number}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big") >> 1
        return replace(self.task, id=f"{self.task.id}/{number}", question=question, seed=seed, images=())

    async def _run(self, running: _Running) -> dict[str, Any]:
        """Run a child to its end; return its answer and status."""
        self._begun.append(running)
        try:
            with self.budget.watch.running():
                running.made = await self._made(running.run)
        except ExhaustedError:
            running.made = running.run.trajectory(Status.TOKEN_LIMIT)
        except ValueError:  # nothing was sampled
            self._begun.remove(running)
            raise
        except Exception as error:
            raise SessionError(f"a call of {running.kind} failed: {type(error).__name__}: {error}") from error
        if running.made.status is Status.FAILED:
            raise SessionError(f"a call of {running.kind} failed: {running.made.failure}")
        return {"answer": running.made.answer, "status": str(running.made.status)}

    async def _made(self, run: Episode | OneAnswer) -> Trajectory:
        if isinstance(run, Episode):  # which has its deadline
            return await run.run()
        try:
            async with asyncio.timeout(self._seconds_left):
                return await run.run()
        except TimeoutError:
            return run.trajectory(Status.TIMEOUT)

    def _check_length(self, text: str) -> None:
        if len(text) > (limit := min(REQUEST_BYTES, CHARS_OF_TOKEN * self.settings.context_tokens)):
            raise ValueError(f"the text has {len(text)} characters, {limit} are allowed: give less of it")

    async def _copied(self, theirs: Files, name: str) -> bool:
        """Return whether a file of a child could be copied here."""
        try:
            await asyncio.to_thread(self.files.put, name, await asyncio.to_thread(theirs.read, name))
        except ValueError:
            return False
        return True


def _valid(kind: Any, arguments: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
