"""Doubles of engine, runners, learner and delivery for processes that die; see crash_lab.py."""

import asyncio
import errno
import hashlib
import json
import os
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.sessions import Asked
from nbrl.agent.trajectory import Node, Status, Step, Trajectory, to_table
from nbrl.infra.node_cache import NodeSettings, PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.checkpoints import HF, STATE, TOKEN_LOGPROBS
from nbrl.tasks.learner.batch.batch import batch_to_teach
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.token_logprobs import TOKEN_LOGPROBS_SCHEMA, table_of
from nbrl.tasks.learner.checkpoint.identity import checkpoint_identity, order_digest
from nbrl.tasks.learner.checkpoint.store import store_on
from nbrl.tasks.learner.orders import OrderTables, TeachOrder, UpdateOrder, UpdateResult, read_tables
from nbrl.tasks.learner.proof import Mismatch, Proof, ProofSequence
from nbrl.tasks.rollout import chunks
from nbrl.tasks.rollout.chunks import in_order, index_of
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan
from nbrl.tasks.rollout.sessions import SessionPool
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.ending import Ending
from nbrl.tasks.services.fleet import WeightSource
from nbrl.tasks.tracking.mlflow_sync import MlflowSync
from tests.tasks.learner.alone import Alone
from tests.tasks.nodes.doubles import DoubleFleet

DIED = 137
PAUSE_S = 0.01  # before each trajectory that is sampled beside an update, and between the stages of the update
NO_LOGPROBS = TOKEN_LOGPROBS_SCHEMA.empty_table()


class Death:
    """Counts steps, and ends or stops this process in front of one of them, or leaves no room on the disk from one of them on."""

    def __init__(self, at: int, pause_at: int, full_at: int, told: Path) -> None:
        """`told`: the file into which a process that stops writes its number and what it was about to do."""
        self.at, self.pause_at, self.full_at, self.told, self.steps = at, pause_at, full_at, told, 0
        self._counting = threading.Lock()

    def step(self, what: str = "") -> None:
        with self._counting:
            self.steps += 1
            number = self.steps
        if number == self.at:
            os._exit(DIED)
        if number == self.pause_at:
            whole = self.told.with_suffix(".whole")
            whole.write_text(json.dumps({"pid": os.getpid(), "what": what}))
            whole.rename(self.told)  # a reader that waits for it never reads a part
            os.kill(os.getpid(), signal.SIGSTOP)

    def wrap(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            self.step(f"{name} {args[min(1, len(args) - 1)]}")
            if self.steps >= self.full_at and name in ("write", "create", "put"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*args, **kwargs)

        setattr(owner, name, stepped)


class Fleet(DoubleFleet):
    """Serves one version or, as `adapters`, so many of the newest side by side."""

    def __init__(self, version: str, death: Death, adapters: int) -> None:
        super().__init__(version)
        self._death, self._adapters, self.sampling = death, adapters, 0
        self._live = [version]

    def addresses(self, version: str) -> list[EngineAddress]:
        assert version in self._live, f"weights {version} are asked for, and {self._live} are there"
        return [EngineAddress("double://1", version=version)]

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        assert self._adapters or not self.sampling, "a publish beside rollouts"
        self._death.step()
        await super().publish(checkpoint, version)
        self._add(version)

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        if self._adapters:
            self._add(version)
        else:
            await super().serve(checkpoint, version)

    def _add(self, version: str) -> None:
        self._live = sorted({*self._live, version}, key=int)[-max(1, self._adapters) :]


class DoubleStream:
    """Rows as they come."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.waiting.put_nowait(row)

    async def pause(self) -> None:
        """Nothing waits for it."""

    async def resume(self) -> None:
        """Nothing waited for it."""


class Runners:
    """Plays a trajectory for every row. What is sampled depends on the row's seed; the log-probs differ at every draw."""

    def __init__(self, storage: Storage, fleet: Fleet, pause_s: float, config: RunConfig) -> None:
        self._storage, self._fleet, self._pause_s = storage, fleet, pause_s
        sources = {name: source for name, each in config.environments.items() if (source := each.session_source())}
        self._sessions = SessionPool(sources, 5.0)
        self.map_tables = map_here
        self._steps = 3 if config.rollout.branch is not None else 1

    async def run(
        self,
        rows: list[dict[str, Any]],
        engines: Callable[[], Sequence[EngineAddress]],
        plan: RoundPlan,
        progress: object,
        healthy: object,
        say: object,
    ) -> pa.Table:
        keys = [key for folder in (*plan.earlier, plan.chunks) for key in self._storage.list(folder)]
        index, _ = chunks.found_in(self._storage, keys, {row["id"] for row in rows})
        known = set(index["id"].to_pylist())
        self._fleet.sampling += 1
        for row in rows:
            if row["id"] not in known:
                await asyncio.sleep(self._pause_s)
                played = await self._with_session(row, self._play(row, engines()[0].version or ""))
                place = chunks.write(self._storage, plan.chunks, to_table([played]))
                index = pa.concat_tables([index, index_of([played], *place)])
        self._fleet.sampling -= 1
        return in_order(index, [row["id"] for row in rows])

    @asynccontextmanager
    async def stream(
        self, engines: Callable[[], Sequence[EngineAddress]], plan: RoundPlan, found: Any, healthy: object, say: object
    ) -> AsyncIterator[DoubleStream]:
        """One trajectory after the other, of which every fifth takes much longer, so that later ones overtake it, and by chance
        one in ten fails.
        """
        rows = DoubleStream()

        async def play(row: dict[str, Any]) -> None:
            await asyncio.sleep(self._pause_s * (40 if row["seed"] % 5 == 0 else 1))
            played = self._play(row, self._fleet.version)
            if random.random() < 0.1:
                played.status, played.failure = Status.FAILED, f"engine {random.random()} was away"
            found(index_of([played], *chunks.write(self._storage, plan.chunks, to_table([played]))))

        async def work() -> None:
            playing = set[asyncio.Task[None]]()
            try:
                while True:
                    playing.add(asyncio.create_task(play(await rows.waiting.get())))
                    done = {task for task in playing if task.done()}
                    for task in done:
                        task.result()
                    playing -= done
            finally:
                for task in playing:
                    task.cancel()

        rows.tasks = [asyncio.create_task(work())]
        try:
            yield rows
        finally:
            rows.tasks[0].cancel()

    async def _with_session(self, row: dict[str, Any], trajectory: Trajectory) -> Trajectory:
        """The trajectory with calls of a real session, if its environment has any."""
        if row["reference"] is None:
            return trajectory
        asked = Asked(row["group"], row["question"], row["ability"], row["environment"], row["reference"])
        async with self._sessions.session(asked, row["seed"]) as session:
            assert session is not None
            opening = await session.observe()
            toolbox = Toolbox(session.tools, {tool.name for tool in session.tools})
            for call in (("deposit", {"amount": row["seed"] % 7}), ("draw", {}), ("deposit", {"amount": 5})):
                with suppress(ValueError):
                    await toolbox.call(*call)
            trajectory.steps[0].tool_calls = toolbox.take_calls()
            trajectory.environment, trajectory.question = row["environment"], f"{row['question']}\n\n{opening}"
            trajectory.outcome = await session.outcome(trajectory)
        return trajectory

    def _play(self, row: dict[str, Any], version: str) -> Trajectory:
        draw = random.Random(row["seed"])
        ids = [draw.randrange(100) for _ in range(4)]
        logprobs = [-random.random() for _ in ids]
        thought = "a thought of some length" if draw.random() < 0.5 else ""
        sampled = Node(parent=0, kind="sampled", step=0, token_ids=ids, logprobs=logprobs, weights_version=version)
        nodes, steps = [sampled], [Step(think=thought, code="print(42)", cell_status="ok")]
        for number in range(1, self._steps):
            nodes.append(Node(**{**sampled.model_dump(), "step": number, "token_ids": [number, *ids[1:]]}))
            steps.append(Step(think=thought, code=f"print({number})", cell_status="ok"))
        if (trunk := row.get("trunk")) is not None:
            draw = random.Random(trunk["seed"])
            for node in nodes[: trunk["steps"]]:
                node.kind, node.logprobs, node.weights_version = "action", [], ""
        return Trajectory(
            id=row["id"],
            group=row["group"],
            sample=row["sample"],
            question=row["question"],
            ability=row["ability"],
            status=Status.ANSWERED,
            answer=_sum_of(row["question"]) if draw.random() < 0.8 else str(draw.randrange(3)),
            failure="",
            nodes=[Node(parent=-1, kind="system", step=-1, token_ids=[0]), *nodes],
            steps=steps,
        )


def _sum_of(question: str) -> str:
    """The answer to a question of arithmetic; to others nothing that is right."""
    terms = question.removeprefix("How much is ").rstrip("?").replace("plus", "+").replace("minus", "-").replace("times", "*")
    return str(eval(terms)) if set(terms) <= set("0123456789 +-*") else "?"


class Learner:
    """Weights are a digest of the weights before, the sampled tokens, the advantages and, where the loss `reads` them, the
    log-probs of the engine. States are what it goes on from where memory does not hold the weights.
    """

    def __init__(self, storage: Storage, death: Death, reads: bool, nodes: NodeSettings) -> None:
        alone: Any = Alone()
        self._storage, self._death, self._reads = storage, death, reads
        self._shelf = store_on(storage, nodes, alone)
        self._held: tuple[str | None, bytes] = (None, b"")  # a checkpoint and its weights
        self._adding: asyncio.Task[None] | None = None

    async def update(self, order: UpdateOrder) -> UpdateResult:
        """In stages, between which rollouts go on."""
        storage, shelf, tables = self._storage, self._shelf, read_tables(order, self._storage)
        start = checkpoint_identity(storage, order.checkpoint_in) if order.checkpoint_in else order.initial
        digest = order_digest(order, tables, start)
        if earlier := shelf.earlier_result(order, digest):
            return earlier
        await self.settle()
        weights = self._step(self._bring(order), tables)
        self._death.step()
        folder = shelf.begin(order.checkpoint_out)
        pq.write_table(NO_LOGPROBS, folder / TOKEN_LOGPROBS)
        states = {"awaited": [folder / STATE], "none": []}.get(order.state)
        parts = [folder / HF, *([shelf.begin_states(order.checkpoint_out) / STATE] if states is None else states)]
        for part in parts:
            await asyncio.sleep(PAUSE_S)
            self._death.step()
            part.mkdir()
            (part / "model.safetensors").write_bytes(weights)
        metrics = {"update/steps": 1.0, "update/loss": 0.5, "mismatch/logprob_max_abs": 0.0, "seconds/total": random.random()}
        result = UpdateResult(
            iteration=order.iteration,
            order=digest,
            metrics=metrics,
            checkpoint=order.checkpoint_out,
            proof=Proof(sequences=[ProofSequence(token_ids=[1, 2], first=1, logprobs=[-0.5])], before=Mismatch(mean=0, high=0)),
        )
        await asyncio.sleep(PAUSE_S)
        self._death.step()
        shelf.finish(order.checkpoint_out, result)
        self._death.step()
        self._held = order.checkpoint_out, weights
        if order.state == "later":
            self._adding = asyncio.create_task(self._add(order.checkpoint_out))
        return result

    async def teach(self, order: TeachOrder) -> pa.Table:
        """By the tokens alone, as a model says it."""
        batch = batch_to_teach(read_tables(order, self._storage))
        return table_of(batch.trajectories, Targets.of(batch.forest), -1.0 - batch.forest.pack().target_N % 10)

    async def settle(self) -> None:
        if self._adding is not None:
            await self._adding

    async def _add(self, out: str) -> None:
        await asyncio.sleep(PAUSE_S)
        self._death.step()
        self._shelf.add_states(out)

    def _bring(self, order: UpdateOrder) -> bytes:
        checkpoint, storage = order.checkpoint_in, self._storage
        if checkpoint == self._held[0]:
            return self._held[1]
        weights = storage.read_bytes(f"{order.base}/{STATE}/model.safetensors") if order.base else b""
        for each in order.repeats:
            weights = self._step(weights, read_tables(each, storage))
        assert not order.repeats or weights == storage.read_bytes(f"{checkpoint}/{HF}/model.safetensors")
        return weights

    def _step(self, before: bytes, tables: OrderTables) -> bytes:
        rows = tables.trajectories.to_pylist()
        tokens = [(row["id"], [node["token_ids"] for node in row["nodes"]]) for row in rows]
        tokens += [(row["id"], [node["logprobs"] for node in row["nodes"]]) for row in rows if self._reads]
        taught = [] if tables.teacher is None else tables.teacher.to_pylist()
        return hashlib.sha256(json.dumps([before.hex(), tokens, tables.advantages.to_pylist(), taught]).encode()).digest()


class InlineDelivery:
    """Delivers at once, so that steps have an order."""

    def __init__(self, books: MlflowSync) -> None:
        self._books = books

    def wake(self) -> None:
        self._books.catch_up()

    def finish(self) -> None:
        self._books.catch_up()
        self._books.end(Ending("FINISHED"))


def map_here(tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
    """`map_tables` without Ray."""
    return pa.concat_tables([function(table, *arguments) for table in tables])
