"""The Ray actor that runs many episodes at once, each in a kernel of its own.

Invariants: a finished trajectory is on storage before it is counted; a trajectory already on storage is not run again; an
infrastructure fault costs an attempt, but never ends the batch, except a fault of the storage, whose StorageError is raised.
"""

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from nbrl.agent.context.context import check_room
from nbrl.agent.episode import Task
from nbrl.agent.text import with_files
from nbrl.agent.tools.base import describe
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment
from nbrl.agent.trajectory import Status, Trajectory, to_table
from nbrl.infra.storage import Storage
from nbrl.tasks.rollout.chunks import Chunks, finished
from nbrl.tasks.rollout.corpora import open_corpus
from nbrl.tasks.rollout.episodes import Episodes, Hidden, failed
from nbrl.tasks.rollout.notebooks import Notebooks
from nbrl.tasks.rollout.plan import RolloutBatch, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.samplers import Sampler, Samplers, samplers_of


@dataclass
class Live:
    """What is alive between the start of a runner and its end."""

    episodes: Episodes
    samplers: Samplers
    ends: AsyncExitStack


class Runner:
    """Async Ray actor. Starts its pool on first use; `stop` ends every kernel."""

    def __init__(self, plan: RunnerPlan) -> None:
        self._plan = plan
        self._live: Live | None = None
        self._lock = asyncio.Lock()
        self._finished = 0
        self._damaged: list[str] = []
        self._said: list[str] = []
        self._life = uuid.uuid4().hex

    async def start(self) -> None:
        """Idempotent. Raises SandboxError, AgentError or InfraError if a part cannot start, or no question fits."""
        async with self._lock:
            if self._live is not None:
                return
            plan = self._plan
            equipment = await asyncio.to_thread(self._equipment)
            samplers = samplers_of(plan)
            async with AsyncExitStack() as stack:
                notebooks = await stack.enter_async_context(Notebooks.open(plan.rollout.tools, equipment, plan.sandbox))
                for name, ability in notebooks.library.every:
                    tools = describe(notebooks.library.tools(name, ability))
                    check_room(samplers.renderer, plan.agent, tools, plan.environments[name].prompt)
                self._live = Live(Episodes(plan, notebooks, samplers.renderer), samplers, stack.pop_all())

    def _equipment(self) -> dict[str, Equipment]:
        """What the environments bring along; an index of many passages is made once on this machine."""
        plan, found = self._plan, dict[str, Equipment]()
        for name, each in plan.environments.items():
            corpus = Corpus.in_memory([])
            if each.corpus is not None:
                read = partial(_passages, plan.storage, *each.corpus)
                corpus = open_corpus(plan.home, each.corpus[1], read, self._said.append)
            found[name] = Equipment(corpus, each.tools)
        return found

    async def said(self) -> list[str]:
        """All sentences about the start so far."""
        return list(self._said)

    async def stop(self) -> None:
        async with self._lock:
            if self._live is not None:
                live, self._live = self._live, None
                await live.ends.aclose()

    async def finished(self) -> tuple[str, int]:
        """Id of this life of the runner, another after each restart, and the number of trajectories finished in it."""
        return self._life, self._finished

    async def damaged(self) -> list[str]:
        """Addresses of the damaged chunks found since this was asked last, whose trajectories were run again."""
        found, self._damaged = self._damaged, []
        return found

    async def run(self, batch: RolloutBatch) -> pa.Table:
        """Return all trajectories of a batch, in its order, as a table of nbrl.agent.trajectory.SCHEMA. Raises StorageError."""
        await self.start()
        plan, storage, ids = batch.round, self._plan.storage, {row["id"] for row in batch.rows}
        known, damaged = await asyncio.to_thread(finished, storage, (*plan.earlier, plan.unfinished), ids)
        self._damaged += damaged
        self._finished += len(known)
        chunks = Chunks(storage, plan.unfinished, len(ids) - len(known))
        gate = asyncio.Semaphore(self._plan.rollout.episodes_per_runner)
        async with self._now().samplers.opened(batch) as new:

            async def one(row: dict[str, Any]) -> Trajectory:
                if row["id"] in known:
                    return known[row["id"]]
                # Prompts of runs that began before there were environments name none.
                given = row | {"environment": row["environment"] or next(iter(self._plan.environments))}
                attached = {file["name"]: file["digest"] for file in given.pop("files")}
                hidden = Hidden(attached, given.pop("collect"), tuple(given.pop("answers")))
                if not plan.direct:  # else there is no folder in which they would be
                    given["question"] = with_files(given["question"], attached)
                task = Task(**given, instruction=self._plan.environments[given["environment"]].prompt)
                async with gate:
                    trajectory, table = _storable(task, await self._attempts(task, hidden, new, plan))
                if trajectory.status is Status.FAILED:
                    chunks.pass_over()
                else:
                    await chunks.keep(table)
                self._finished += 1
                return trajectory

            tasks = [asyncio.create_task(one(row)) for row in batch.rows]
            try:
                return to_table(await asyncio.gather(*tasks))
            finally:  # where one raised, the others have nothing to run for
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _now(self) -> Live:
        if self._live is None:
            raise RuntimeError("the runner was stopped while it ran a batch")
        return self._live

    async def _attempts(self, task: Task, hidden: Hidden, new: Callable[[], Sampler], plan: RoundPlan) -> Trajectory:
        """Try until the trajectory ends without an infrastructure fault or the attempts are used up."""
        for attempt in range(self._plan.rollout.attempts):
            if attempt:
                await asyncio.sleep(min(5.0, 0.1 * 2**attempt))
            trajectory = await self._now().episodes.play(task, hidden, new, plan)
            if trajectory.status is not Status.FAILED:
                break
        return trajectory


def _passages(storage: Storage, key: str, digest: str) -> pa.ChunkedArray:
    return storage.read_table(key, digest)["passage"]


def _storable(task: Task, trajectory: Trajectory) -> tuple[Trajectory, pa.Table]:
    """The trajectory and its table; of one that no table can hold, a failed one: no content of a trajectory may end the batch."""
    try:
        return trajectory, to_table([trajectory])
    except ValueError as error:  # raised by pyarrow or encoding
        trajectory = failed(task, f"it cannot be stored: {error}")
        return trajectory, to_table([trajectory])
