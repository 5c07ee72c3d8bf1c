"""Runs many episodes at once, each in a kernel of its own: in this process, or as an actor of Ray (pooled_runner.py).

Invariants: a finished trajectory is on storage before it is counted; an infrastructure fault costs an attempt, but never ends the
round, except a fault of the storage, whose StorageError is raised.
"""

import asyncio
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from nbrl.agent.context.context import check_room
from nbrl.agent.episode import Task
from nbrl.agent.text import with_files
from nbrl.agent.tools.awaited import with_awaited
from nbrl.agent.tools.base import describe
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.sessions import Asked
from nbrl.agent.trajectory import Status, Trajectory, from_table
from nbrl.infra.parts import DIGEST, PART, ROW
from nbrl.infra.storage import Storage
from nbrl.tasks.rollout.chunks import Chunks, found_in, storable
from nbrl.tasks.rollout.corpora import open_corpus
from nbrl.tasks.rollout.episodes import Episodes, HiddenParts, RecordedTrunk, failed
from nbrl.tasks.rollout.notebooks import Notebooks
from nbrl.tasks.rollout.plan import RoundPlan, RunnerPlan
from nbrl.tasks.rollout.program_episode import limits_for, programs_of
from nbrl.tasks.rollout.queued_round import Assignment, Row
from nbrl.tasks.rollout.samplers import Engines, Sampler, Samplers, samplers_of
from nbrl.tasks.rollout.sessions import SessionPool
from nbrl.tasks.rollout.work_queue import SIGN_S

RESERVE = 4  # for so many episodes at once one more row is assigned, so that none of them waits for the queue


class RowSlots:
    """A task for each row, with `slots` of them in an episode at once; a row that is only being stored takes no place."""

    def __init__(self, slots: int) -> None:
        self._gate = asyncio.Semaphore(slots)
        self._places = slots + max(1, slots // RESERVE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        """Return how many more rows it takes."""
        return max(0, self._places)

    def add(self, identity: str, work: Coroutine[Any, Any, None]) -> None:
        """Start the row's task. Re-raises the error of a previous, finished task of the row."""
        if identity in self._tasks and self._tasks[identity].done():
            self._tasks[identity].result()
        self._places -= 1
        self._tasks[identity] = asyncio.create_task(work)

    def __contains__(self, identity: str) -> bool:
        return identity in self._tasks and not self._tasks[identity].done()

    def give_again(self, identity: str) -> None:
        """Note that a row in its slots was assigned once more, after another runner had it."""
        self._again.add(identity)

    def was_given_again(self, identity: str) -> bool:
        """Return whether that happened since the last call."""
        given = identity in self._again
        self._again.discard(identity)
        return given

    async def __aenter__(self) -> None:
        """Begin an episode."""
        await self._gate.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._gate.release()
        self._places += 1
        self._freed.set()

    async def room(self, limit_s: float) -> None:
        """Wait until there is a place, at most `limit_s` seconds. Raises what a row's task raised."""
        if not self.free:
            self._freed.clear()
            try:
                async with asyncio.timeout(limit_s):
                    await self._freed.wait()
            except TimeoutError:
                pass
        for identity in [identity for identity, task in self._tasks.items() if task.done()]:
            self._tasks.pop(identity).result()

    async def drop(self) -> None:
        """End all tasks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@dataclass
class LiveRunner:
    """The services of a runner between its start and its end."""

    episodes: Episodes
    samplers: Samplers
    ends: AsyncExitStack


class Queue(Protocol):
    """The methods of a WorkQueue that a runner calls."""

    async def begin(self, name: str, number: int, life: str) -> None: ...

    async def take(self, name: str, number: int, life: str, free: int) -> Assignment: ...

    async def finish(self, name: str, number: int, life: str, index: pa.Table) -> Collection[str]: ...


class Runner:
    """Starts its pool on first use; `stop` ends every kernel. `queue` assigns rows."""

    def __init__(self, plan: RunnerPlan, number: int, queue: Queue) -> None:
        self._plan, self._number, self._queue = plan, number, queue
        self._live: LiveRunner | None = None
        self._lock = asyncio.Lock()
        self._said: list[str] = []
        self._life, self._turn = uuid.uuid4().hex, 0

    async def start(self) -> None:
        """Start once. Raises SandboxError, AgentError or InfraError if a part cannot start, or no question fits."""
        async with self._lock:
            if self._live is not None:
                return
            plan = self._plan
            equipment = await asyncio.to_thread(self._equipment)
            samplers = samplers_of(plan)
            async with AsyncExitStack() as stack:
                sandbox = limits_for(plan.agent, plan.sandbox)
                notebooks = await stack.enter_async_context(Notebooks.open(plan.rollout.tools, equipment, sandbox))
                programs = None
                if plan.agent.kind == "program":
                    programs = await stack.enter_async_context(programs_of(samplers.conversations, sandbox))
                else:
                    for name, ability in notebooks.library.every:
                        known = notebooks.library.tools(name, ability)
                        tools = describe(known if plan.agent.children is None else with_awaited(known))
                        check_room(samplers.renderer, plan.agent, tools, plan.environments[name].prompt)
                sources = {name: each.sessions for name, each in plan.environments.items() if each.sessions is not None}
                sessions = SessionPool(sources, plan.sandbox.call_timeout_s)
                stack.push_async_callback(sessions.close)
                episodes = Episodes(plan, notebooks, samplers.renderer, sessions, programs)
                self._live = LiveRunner(episodes, samplers, stack.pop_all())

    def _equipment(self) -> dict[str, Equipment]:
        """Return what the environments bring along; an index of many passages is made once on this machine."""
        plan, found = self._plan, dict[str, Equipment]()
        for name, each in plan.environments.items():
            corpus = Corpus.in_memory([])
            if each.corpus is not None:
                read = partial(_passages, plan.storage, *each.corpus)
                corpus = open_corpus(plan.home, each.corpus[1], read, self._said.append)
            found[name] = Equipment(corpus, each.tools)
        return found

    async def said(self) -> list[str]:
        """Return all sentences so far: about the start, and about what programs cost."""
        if self._number == 0 and self._live is not None and (price := self._live.episodes.price()):  # of all runners one says it
            self._said.append(price)
        return list(self._said)

    async def stop(self) -> None:
        async with self._lock:
            if self._live is not None:
                live, self._live = self._live, None
                await live.ends.aclose()

    async def find(self, keys: Sequence[str], ids: Sequence[str]) -> tuple[pa.Table, list[str]]:
        """Return the index of the trajectories that are in these chunks, and the addresses of damaged ones."""
        return await asyncio.to_thread(found_in, self._plan.storage, keys, ids)

    async def run(self, name: str, plan: RoundPlan) -> None:
        """Run what the queue gives of the round `name`, until that is over. Raises StorageError."""
        await self.start()
        self._turn, turn = self._turn + 1, self._turn + 1  # where Ray lost a call that still runs, it ends for the new one
        await self._queue.begin(name, self._number, self._life)
        slots = RowSlots(self._plan.rollout.episodes_per_runner)
        chunks = Chunks(self._plan.storage, plan.chunks, partial(self._queue.finish, name, self._number, self._life))
        given = await self._queue.take(name, self._number, self._life, slots.free)
        engines = Engines(given.engines, self._number)  # so that not all runners begin with the same one
        async with self._now().samplers.opened(plan, engines) as new:
            try:
                while not given.over and turn == self._turn:
                    engines.now = given.engines
                    chunks.expect(sum(row["id"] not in slots for row in given.rows), given.more)
                    for row in given.rows:
                        if row["id"] in slots:
                            slots.give_again(row["id"])
                        else:
                            slots.add(row["id"], self._one(row, plan, new, slots, chunks))
                    await slots.room(SIGN_S)
                    given = await self._queue.take(name, self._number, self._life, slots.free)
            finally:  # where one raised, or others finished the round, there is nothing to run for
                await slots.drop()

    async def _one(self, row: Row, plan: RoundPlan, new: Callable[[], Sampler], slots: RowSlots, chunks: Chunks) -> None:
        """Run a row and keep its trajectory. Where that does not count, it is run again if it was given again meanwhile."""
        given = dict(row)
        attached = {file["name"]: file["digest"] for file in given.pop("files")}
        trunk = given.pop("trunk", None)
        hidden = _hidden(given, attached)
        if trunk is not None:
            hidden = replace(hidden, trunk=await asyncio.to_thread(_trunk, self._plan.storage, trunk))
        if not plan.direct:  # else there is no folder in which they would be
            given["question"] = with_files(given["question"], attached)
        task = Task(**given, instruction=self._plan.environments[given["environment"]].prompt)
        async with slots:
            trajectory = await self._attempts(task, hidden, new, plan)
        try:
            table = storable(trajectory)
        except ValueError as error:  # raised by pyarrow or encoding
            trajectory = failed(task, f"it cannot be stored: {error}")
            table = storable(trajectory)
        if not await chunks.keep(trajectory, table) and slots.was_given_again(row["id"]):
            chunks.expect_again()
            slots.add(row["id"], self._one(row, plan, new, slots, chunks))

    def _now(self) -> LiveRunner:
        if self._live is None:
            raise RuntimeError("the runner was stopped while it ran a round")
        return self._live

    async def _attempts(self, task: Task, hidden: HiddenParts, new: Callable[[], Sampler], plan: RoundPlan) -> Trajectory:
        """Try until the trajectory ends without an infrastructure fault or the attempts are used up."""
        for attempt in range(self._plan.rollout.attempts):
            if attempt:
                await asyncio.sleep(min(5.0, 0.1 * 2**attempt))
            trajectory = await self._now().episodes.play(task, hidden, new, plan)
            if trajectory.status is not Status.FAILED:
                break
        return trajectory


def _trunk(storage: Storage, row: Mapping[str, Any]) -> RecordedTrunk:
    """Return the beginning of a branch, of which a row says where it lies."""
    table = storage.read_table(row[PART], row[DIGEST])
    (trajectory,) = from_table(table.slice(row[ROW], 1))
    return RecordedTrunk(trajectory, row["steps"], row["seed"])


def _hidden(given: Row, attached: Mapping[str, str]) -> HiddenParts:
    """Take from a row what the agent does not see, and return it."""
    reference, question_id = given.pop("reference", None), given.pop("question_id", "")
    asked = None
    if reference is not None:
        asked = Asked(question_id, given["question"], given["ability"], given["environment"], reference)
    collect, answers = given.pop("collect"), tuple(given.pop("answers"))
    return HiddenParts(attached, collect, answers, asked, given.pop("max_steps", None), given.pop("deadline_s", None))


def _passages(storage: Storage, key: str, digest: str) -> pa.ChunkedArray:
    return storage.read_table(key, digest)["passage"]
