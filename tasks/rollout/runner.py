"""The Ray actor that runs many episodes at once, each in a kernel of its own.

Invariants: a finished trajectory is on storage before it is counted; a trajectory already on storage is not run again; an
infrastructure fault costs an attempt, but never ends the batch.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import pyarrow as pa

from nbrl.agent.context.context import check_room
from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import AgentError
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import describe
from nbrl.agent.trajectory import Status, Trajectory, from_table, to_table
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.storage import Storage
from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.layout import RoundLayout
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel
from nbrl.tasks.rollout.settings import RolloutSettings


@dataclass(frozen=True)
class RunnerPlan:
    """What a runner needs to start, as plain data, so that a restarted actor starts in the same way."""

    model_path: str
    corpus_path: str
    storage: Storage
    agent: AgentSettings
    sandbox: SandboxSettings
    rollout: RolloutSettings


@dataclass(frozen=True)
class RolloutBatch:
    """The work of one call: rows of (id, group, sample, question, ability, seed) for the engine at `url`, written below `layout`.

    `adapter` is the name of the engine's LoRA adapter to sample with.
    """

    rows: list[dict[str, Any]]
    url: str
    adapter: str | None
    layout: RoundLayout
    sampling: Sampling
    engine: EngineSettings


@dataclass
class _Live:
    notebooks: Notebooks
    tokenizer: ChatTokenizer
    ends: AsyncExitStack


class Runner:
    """Async Ray actor. Starts its pool on first use; `stop` ends every kernel."""

    def __init__(self, plan: RunnerPlan) -> None:
        self._plan = plan
        self._live: _Live | None = None
        self._lock = asyncio.Lock()
        self._finished = 0

    async def start(self) -> None:
        """Idempotent. Raises SandboxError or AgentError if kernels or the tokenizer cannot start, or no question fits."""
        async with self._lock:
            if self._live is not None:
                return
            plan = self._plan
            passages = (await asyncio.to_thread(plan.storage.read_table, plan.corpus_path))["passage"].to_pylist()
            tokenizer = ChatTokenizer.load(plan.model_path, plan.agent)
            async with AsyncExitStack() as stack:
                notebooks = await stack.enter_async_context(Notebooks.open(plan.rollout.tools, passages, plan.sandbox))
                for ability in notebooks.library.abilities:
                    check_room(tokenizer, plan.agent, describe(notebooks.library.tools(ability)))
                self._live = _Live(notebooks, tokenizer, stack.pop_all())

    async def stop(self) -> None:
        async with self._lock:
            if self._live is not None:
                live, self._live = self._live, None
                await live.ends.aclose()

    async def finished(self) -> int:
        """Number of trajectories finished since the runner was created; a progress display polls it."""
        return self._finished

    async def run(self, batch: RolloutBatch) -> pa.Table:
        """Return all trajectories of a batch, in its order, as a table of nbrl.agent.trajectory.SCHEMA."""
        await self.start()
        stored = set(self._plan.storage.list(batch.layout.unfinished))
        gate = asyncio.Semaphore(self._plan.rollout.episodes_per_runner)
        async with engine_session(batch.engine.request_timeout_s) as session:

            async def one(row: dict[str, Any]) -> Trajectory:
                path = batch.layout.single(row["id"])
                async with gate:
                    trajectory = await asyncio.to_thread(self._earlier, path) if path in stored else None
                    if trajectory is None:
                        trajectory = await self._attempts(Task(**row), session, batch)
                        try:
                            table = to_table([trajectory])
                        except ValueError as error:  # raised by pyarrow or encoding: no content of a trajectory may end the batch
                            trajectory = failed(Task(**row), f"it cannot be stored: {error}")
                            table = to_table([trajectory])
                        await asyncio.to_thread(self._plan.storage.write_table, path, table)
                self._finished += 1
                return trajectory

            return to_table(await asyncio.gather(*(one(row) for row in batch.rows)))

    def _earlier(self, path: str) -> Trajectory | None:
        """The trajectory that an earlier attempt at the batch finished, or None if it failed and is to be tried again."""
        trajectory = from_table(self._plan.storage.read_table(path))[0]
        return None if trajectory.status is Status.FAILED else trajectory

    async def _attempts(self, task: Task, session: aiohttp.ClientSession, batch: RolloutBatch) -> Trajectory:
        """Try until the trajectory ends without an infrastructure fault or the attempts are used up."""
        for attempt in range(self._plan.rollout.attempts):
            if attempt:
                await asyncio.sleep(min(5.0, 0.1 * 2**attempt))
            trajectory = await self._episode(task, session, batch)
            if trajectory.status is not Status.FAILED:
                break
        return trajectory

    async def _episode(self, task: Task, session: aiohttp.ClientSession, batch: RolloutBatch) -> Trajectory:
        live, settings = self._live, self._plan.agent
        if live is None:
            raise RuntimeError("the runner was stopped while it ran a batch")
        seeded = batch.engine.seeded_sampling
        policy = SglangPolicy(session, batch.url, live.tokenizer.stop_ids, batch.sampling, seeded, batch.adapter)
        try:
            async with live.notebooks.new(task.ability) as (kernel, toolbox):
                return await Episode(task, policy, SandboxedKernel(kernel), toolbox, live.tokenizer, settings).run()
        except (SandboxError, AgentError) as error:
            return failed(task, str(error))
        except Exception as error:  # no fault of one trajectory may end the others
            return failed(task, f"{type(error).__name__}: {error}")


def failed(task: Task, reason: str) -> Trajectory:
    """The trajectory of a task that never got a kernel."""
    return Trajectory(
        id=task.id,
        group=task.group,
        sample=task.sample,
        question=task.question,
        ability=task.ability,
        status=Status.FAILED,
        answer=None,
        failure=reason,
        nodes=[],
        steps=[],
    )
