"""The Ray actor that runs many episodes at once, each in a kernel of its own.

Invariants: a finished trajectory is on storage before it is counted; a trajectory already on storage is not run again; an
infrastructure fault costs an attempt, but never ends the batch, except a fault of the storage, whose StorageError is raised.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import pyarrow as pa

from nbrl.agent.context.context import check_room
from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import AgentError
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.text import with_files
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import describe
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.simulated import Asked
from nbrl.agent.trajectory import ProducedFile, Status, Trajectory, to_table
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.rollout.chunks import Chunks, finished
from nbrl.tasks.rollout.corpora import open_corpus
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel
from nbrl.tasks.rollout.settings import RolloutSettings

COLLECTED_BYTES = 2 << 20  # of one file; it is stored with the trajectory


@dataclass(frozen=True)
class EnvironmentPlan:
    """An environment as an agent meets it. `corpus` is the key and SHA-256 of its passages on storage; None if it has none."""

    corpus: tuple[str, str] | None = None
    tools: tuple[str, ...] | None = None
    prompt: str = ""


@dataclass(frozen=True)
class RunnerPlan:
    """What a runner needs to start, as plain data, so that a restarted actor starts in the same way.

    `attached` is the folder on storage of the files that questions come with, named by their SHA-256.
    """

    model_path: str
    environments: Mapping[str, EnvironmentPlan]
    attached: str
    storage: Storage
    agent: AgentSettings
    sandbox: SandboxSettings
    rollout: RolloutSettings
    home: Home


@dataclass(frozen=True)
class Hidden:
    """What belongs to a task and the agent is not told.

    The files `attached`, by name their SHA-256, are in the working folder from the beginning; those of the names in `collect` are
    kept at the end. `answers` are those that a simulated search may use; empty with any other.
    """

    attached: Mapping[str, str]
    collect: Sequence[str]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class RolloutBatch:
    """The work of one call: rows of nbrl.tasks.nodes.rollout.task_rows for the engine at `url`.

    `adapter` is the name of the engine's LoRA adapter to sample with. What finishes is kept in the folder `unfinished`, where a
    runner that Ray started again finds it; the folders of `earlier` attempts are looked into as well. `trained` is the share of
    the training that is done, and None in an evaluation.
    """

    rows: list[dict[str, Any]]
    url: str
    adapter: str | None
    unfinished: str
    earlier: tuple[str, ...]
    sampling: Sampling
    engine: EngineSettings
    trained: float | None = None


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
            tokenizer = ChatTokenizer.load(plan.model_path, plan.agent)
            async with AsyncExitStack() as stack:
                notebooks = await stack.enter_async_context(Notebooks.open(plan.rollout.tools, equipment, plan.sandbox))
                for name, ability in notebooks.library.every:
                    tools = describe(notebooks.library.tools(name, ability))
                    check_room(tokenizer, plan.agent, tools, plan.environments[name].prompt)
                self._live = _Live(notebooks, tokenizer, stack.pop_all())

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
        storage, ids = self._plan.storage, {row["id"] for row in batch.rows}
        known, damaged = await asyncio.to_thread(finished, storage, (*batch.earlier, batch.unfinished), ids)
        self._damaged += damaged
        self._finished += len(known)
        chunks = Chunks(storage, batch.unfinished, len(ids) - len(known))
        gate = asyncio.Semaphore(self._plan.rollout.episodes_per_runner)
        async with engine_session(batch.engine.request_timeout_s) as session:

            async def one(row: dict[str, Any]) -> Trajectory:
                if row["id"] in known:
                    return known[row["id"]]
                # Prompts of runs that began before there were environments name none.
                given = row | {"environment": row["environment"] or next(iter(self._plan.environments))}
                attached = {file["name"]: file["digest"] for file in given.pop("files")}
                hidden = Hidden(attached, given.pop("collect"), tuple(given.pop("answers")))
                given["question"] = with_files(given["question"], attached)
                task = Task(**given, instruction=self._plan.environments[given["environment"]].prompt)
                async with gate:
                    trajectory, table = _storable(task, await self._attempts(task, hidden, session, batch))
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

    async def _attempts(self, task: Task, hidden: Hidden, session: aiohttp.ClientSession, batch: RolloutBatch) -> Trajectory:
        """Try until the trajectory ends without an infrastructure fault or the attempts are used up."""
        for attempt in range(self._plan.rollout.attempts):
            if attempt:
                await asyncio.sleep(min(5.0, 0.1 * 2**attempt))
            trajectory = await self._episode(task, hidden, session, batch)
            if trajectory.status is not Status.FAILED:
                break
        return trajectory

    async def _episode(self, task: Task, hidden: Hidden, session: aiohttp.ClientSession, batch: RolloutBatch) -> Trajectory:
        live, settings = self._live, self._plan.agent
        if live is None:
            raise RuntimeError("the runner was stopped while it ran a batch")
        engine = batch.engine
        policy = SglangPolicy(
            session,
            batch.url,
            live.tokenizer.stop_ids,
            batch.sampling,
            engine.seeded_sampling,
            batch.adapter,
            away_s=engine.start_timeout_s,
        )
        asked = Asked(task.question, hidden.answers, task.seed, batch.trained) if hidden.answers else None
        try:
            async with live.notebooks.new(task.environment, task.ability, asked=asked) as (kernel, toolbox):
                await asyncio.to_thread(self._attach, kernel, hidden.attached)
                trajectory = await Episode(task, policy, SandboxedKernel(kernel), toolbox, live.tokenizer, settings).run()
                trajectory.files = await asyncio.to_thread(_collect, kernel, hidden.collect)
        except (SandboxError, AgentError) as error:
            return failed(task, str(error))
        except Exception as error:  # no fault of one trajectory may end the others
            return failed(task, f"{type(error).__name__}: {error}")
        if trajectory.status is Status.TIMEOUT and (policy.interrupted or not await policy.serves()):
            # Its deadline passed while it waited for an engine that was away.
            return await self._episode(task, hidden, session, batch)
        return trajectory

    def _attach(self, kernel: SandboxKernel, files: Mapping[str, str]) -> None:
        """Put the question's files into the working folder."""
        for name, digest in files.items():
            kernel.files.put(name, self._plan.storage.read_bytes(f"{self._plan.attached}/{digest}", digest))


def _collect(kernel: SandboxKernel, names: Sequence[str]) -> list[ProducedFile]:
    """Those of the files that are in the working folder, are regular and not too large."""
    found = []
    for name in names:
        with suppress(SandboxError):
            data = kernel.files.read(name)
            if len(data) <= COLLECTED_BYTES:
                found.append(ProducedFile(path=name, data=data))
    return found


def _passages(storage: Storage, key: str, digest: str) -> pa.ChunkedArray:
    return storage.read_table(key, digest)["passage"]


def _storable(task: Task, trajectory: Trajectory) -> tuple[Trajectory, pa.Table]:
    """The trajectory and its table; of one that no table can hold, a failed one: no content of a trajectory may end the batch."""
    try:
        return trajectory, to_table([trajectory])
    except ValueError as error:  # raised by pyarrow or encoding
        trajectory = failed(task, f"it cannot be stored: {error}")
        return trajectory, to_table([trajectory])


def failed(task: Task, reason: str) -> Trajectory:
    """The trajectory of a task that never got a kernel."""
    return Trajectory(
        id=task.id,
        group=task.group,
        sample=task.sample,
        question=task.question,
        ability=task.ability,
        environment=task.environment,
        status=Status.FAILED,
        answer=None,
        failure=reason,
        nodes=[],
        steps=[],
    )
