"""Real flows, nodes, storage and books over doubles of engine, runners, learner, rater and MLflow, in processes that die.

Run as a program: it imports everything once, then forks a child for each line of standard input, `{"work", "root", "home",
"die_at"}`, and answers with a line, `{"status", "steps", "said"}`. `work` is a training, or else a preparation of data or a warm
start, whose output is `root`. A step is a write, a deletion, a publish, a call of MLflow, or one stage of a checkpoint. The child
dies in front of step `die_at`, as by SIGKILL: no `finally` runs.
"""

import asyncio
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import fastapi  # noqa: F401 (Prefect imports it late; the children share what is imported here)
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.sessions import Asked
from nbrl.agent.trajectory import Node, Status, Step, Trajectory, to_table
from nbrl.flows import prepare as prepare_module
from nbrl.flows import train as train_module
from nbrl.flows import warmstart as warmstart_module
from nbrl.infra import ray_cluster
from nbrl.infra.blobs import LocalBlobs
from nbrl.infra.manifest import check_folder
from nbrl.infra.node_cache import NodeCache, PlacedFolder
from nbrl.infra.s3_blobs import S3Blobs
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.checkpoints import HF, STATE, TOKEN_LOGPROBS
from nbrl.tasks.learner.checkpoint.identity import checkpoint_identity, order_digest
from nbrl.tasks.learner.orders import OrderTables, UpdateOrder, UpdateResult, read_tables
from nbrl.tasks.learner.proof import Mismatch, Proof, ProofSequence
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.reward.judge import ask
from nbrl.tasks.rollout import chunks
from nbrl.tasks.rollout.chunks import in_order, index_of
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan
from nbrl.tasks.rollout.sessions import SessionPool
from nbrl.tasks.runs import lease
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.ending import Ending
from nbrl.tasks.runs.history import newest_policy
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Run
from nbrl.tasks.services import restarts
from nbrl.tasks.services.fleet import WeightSource
from nbrl.tasks.services.progress import Progress
from nbrl.tasks.services.services import Services, Training
from nbrl.tasks.tracking import delivery as delivery_module
from nbrl.tasks.tracking.mlflow_sync import MlflowSync
from nbrl.tasks.warmstart.recipe import WarmstartArguments
from nbrl.tasks.warmstart.recipe import load as load_warmstart
from nbrl.tasks.warmstart.work_folder import WorkFolder
from tests.durability.crash_tracking import FileTracking
from tests.tasks.learner.alone import folder_shelf
from tests.tasks.nodes.doubles import DoubleFleet

SETTINGS = [
    "iterations=2",
    "rollout.prompts=4",
    "rollout.group_size=3",
    "select.drop_rate=0.0",
    "evaluate.every=1",
    "evaluate.questions=5",
    "environments.world.train=8",
    "environments.world.held_out=5",
    "checkpoints.keep_last=1",
    "record.traces=1",
]
LAG = {
    0: ["iterations=5", "checkpoints.state_every=3"],
    1: [
        *("iterations=3", "pipeline.lag=1", "pipeline.uncorrected=true"),
        *("checkpoints.keep_last=2", "select.retire_at=0.6"),
    ],
    2: [
        *("iterations=5", "pipeline.lag=2", "pipeline.uncorrected=true", "checkpoints.keep_last=3"),
        *("select.max_rounds=1", "update.lora.publish=adapter", "evaluate.every=2"),
    ],
}
WORLDS = [
    *("environments.bank.kind=own", "environments.bank.place=tests.tasks.bank_world:Bank", "environments.bank.weight=1"),
    *("iterations=1", "evaluate.questions=1"),
]
RUN, DIED = "r", 137
ASKED = "asked.jsonl"  # in the home: what the rater was asked
PAUSE_S = 0.01  # before each trajectory that is sampled beside an update, and between the stages of the update
NOTHING = 10**9
NO_LOGPROBS = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("logprobs", pa.list_(pa.float32()))]).empty_table()


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
            whole.rename(self.told)  # whoever waits for it never reads a part
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


class Runners:
    """Plays a trajectory for every row. What is sampled depends on the row's seed; the log-probs differ at every draw."""

    def __init__(self, storage: Storage, fleet: Fleet, pause_s: float, config: RunConfig) -> None:
        self._storage, self._fleet, self._pause_s = storage, fleet, pause_s
        sources = {name: source for name, each in config.environments.items() if (source := each.session_source())}
        self._sessions = SessionPool(sources, 5.0)
        self.map_tables = map_here

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
        return Trajectory(
            id=row["id"],
            group=row["group"],
            sample=row["sample"],
            question=row["question"],
            ability=row["ability"],
            status=Status.ANSWERED,
            answer=_sum_of(row["question"]) if draw.random() < 0.8 else str(draw.randrange(3)),
            failure="",
            nodes=[Node(parent=-1, kind="system", step=-1, token_ids=[0]), sampled],
            steps=[Step(think=thought, code="print(42)", cell_status="ok")],
        )


def _sum_of(question: str) -> str:
    """The answer to a question of arithmetic; to others nothing that is right."""
    terms = question.removeprefix("How much is ").rstrip("?").replace("plus", "+").replace("minus", "-").replace("times", "*")
    return str(eval(terms)) if set(terms) <= set("0123456789 +-*") else "?"


class Learner:
    """Weights are a digest of the weights before, the sampled tokens, the advantages and, where the loss `reads` them, the
    log-probs of the engine. States are what it goes on from where memory does not hold the weights.
    """

    def __init__(self, storage: Storage, death: Death, reads: bool) -> None:
        self._storage, self._death, self._reads = storage, death, reads
        self._shelf = folder_shelf(storage)
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
        return hashlib.sha256(json.dumps([before.hex(), tokens, tables.advantages.to_pylist()]).encode()).digest()


class InlineDelivery:
    """Delivers at once, so that steps have an order."""

    def __init__(self, books: MlflowSync) -> None:
        self._books = books

    def wake(self) -> None:
        self._books.catch_up()

    def finish(self) -> None:
        self._books.catch_up()
        self._books.end(Ending("FINISHED"))


def services_of(death: Death) -> Callable[[RunConfig, Run, Progress], Any]:
    @asynccontextmanager
    async def doubles(config: RunConfig, run: Run, progress: Progress, up: Callable[[], None]) -> AsyncIterator[Services]:
        storage, newest = Storage(config.storage), newest_policy(Storage(config.storage), run)
        local = storage.local_path(newest.checkpoint) if newest.checkpoint else None
        if local is not None:
            check_folder(local)
        fleet = Fleet(str(newest.updates), death, config.pipeline.lag + 1 if config.publishes_adapters else 0)
        tracking: Any = FileTracking(Path(config.home, "mlflow.json"), death.step)
        delivery: Any = InlineDelivery(MlflowSync(config, storage, run, tracking))
        pause_s, at_once = (PAUSE_S if config.pipeline.lag else 0.0), max(1, config.pipeline.lag)
        pools: list[Any] = [Runners(storage, fleet, pause_s, config) for _ in range(at_once)]
        learner: Any = Learner(storage, death, reads=config.update.tis is not None)
        up()
        yield Services(config, storage, NodeCache(config.nodes), progress, fleet, pools, Training(learner, delivery))
        await learner.settle()
        delivery.finish()

    return doubles


def map_here(tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
    """`map_tables` without Ray."""
    return pa.concat_tables([function(table, *arguments) for table in tables])


def training(job: Mapping[str, Any], death: Death) -> Awaitable[Any]:
    lease.LEASE_S = job["lease_s"]
    restarts.WAITS_S = (0.0,)
    train_module.training_services = services_of(death)
    delivery_module.Tracking = lambda settings, home: FileTracking(home.root / "mlflow.json", death.step)
    config = load("tiny-cpu", [*SETTINGS, f"home={job['home']}", f"storage.root={job['root']}", *job.get("overrides", [])])
    return train_module.train(Prepared(config=config), RUN, take_over=job["take_over"])


async def nothing(*_: object) -> None:
    """In place of what starts Ray."""


def note(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(f"{json.dumps(text)}\n")


def preparation(job: Mapping[str, Any], death: Death) -> Awaitable[Any]:
    async def rated(policy: object, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        objective = 1 if len(prompt.messages[-1].text) % 3 else 0
        note(Path(job["home"], ASKED), prompt.messages[-1].text)
        return Generation([], [], "v", "stop", json.dumps({"objectivity": objective, "temporal_stability": 1}))

    Path(job["home"]).mkdir(parents=True, exist_ok=True)
    prepare_module.map_tables, ray_cluster.use = map_here, nothing
    ask.ChatPolicy.generate = rated  # type: ignore[method-assign]
    questions = Path(job["log"]).with_name("questions.jsonl")
    asked = [{"question": f"{'What' * count} is {count}?", "answers": str(count)} for count in range(9)]
    questions.write_text("\n".join(map(json.dumps, [*asked, asked[0]])))
    source = {"name": "q", "path": questions, "licence": "CC0"}
    rater = {"base_url": "http://127.0.0.1:9/v1", "name": "m", "key": None, "concurrency": 1}
    settings = PrepareSettings.model_validate({"sources": [source], "rate": rater})
    return prepare_module.prepare(settings, Path(job["root"]), job["home"])


def warm_start(job: Mapping[str, Any], death: Death) -> Awaitable[Any]:
    async def learner(stack: object, settings: object, plan: object, model: object, work: WorkFolder, *_: object) -> Learner:
        return Learner(work.storage, death, reads=False)

    ray_cluster.use, warmstart_module._learner = nothing, learner  # type: ignore[assignment]
    death.wrap(shutil, "rmtree")
    death.wrap(Path, "rename")
    storage = Storage(StorageSettings(root=f"{job['home']}/storage"))
    tiny = str(Path(warmstart_module.__file__).parents[1] / "infra/policies/tiny")
    given = WarmstartArguments(start=tiny, training="tiny-cpu", demonstrations="world")
    few = ["phases.demonstrations.demonstrations.world.count=6", "batch=2", "checkpoint_steps=1"]
    settings, training = load_warmstart(given, few, storage), load("tiny-cpu", SETTINGS)
    return warmstart_module.warmstart(settings, training, storage, Path(job["root"]), job["home"])


WORK = {"train": training, "prepare": preparation, "warmstart": warm_start}


def child(job: Mapping[str, Any]) -> int:
    """Work until the end or death. Returns the number of steps."""
    death = Death(job["die_at"], job["pause_at"], job["full_at"], Path(job["log"]).with_suffix(".paused"))
    for name in ("write", "create", "put", "delete", "delete_keys"):
        death.wrap(LocalBlobs, name)
        death.wrap(S3Blobs, name)
    asyncio.run(_ended(WORK[job["work"]](job, death)))
    return death.steps


async def _ended(work: Awaitable[Any]) -> None:
    await work


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        log = Path(job["log"])
        pid = os.fork()
        if not pid:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = 1
            try:
                steps = child(job)
                log.with_suffix(".steps").write_text(str(steps))
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        steps_file = log.with_suffix(".steps")
        answer = {"status": status, "steps": int(steps_file.read_text()) if status == 0 else 0, "said": log.read_text()[-3000:]}
        print(json.dumps(answer), flush=True)


class Lab:
    """The program, and its answers. It ends with the pipe."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.environment = folder, dict(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durability.crash_lab"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def begin(
        self,
        root: Path | str,
        home: Path,
        *,
        work: str = "train",
        die_at: int = NOTHING,
        pause_at: int = NOTHING,
        full_at: int = NOTHING,
        take_over: bool = False,
        lease_s: float = 60.0,
        overrides: Sequence[str] = (),
    ) -> None:
        assert self._process.stdin
        self.paused.unlink(missing_ok=True)
        job = {"work": work, "root": str(root), "home": str(home), "die_at": die_at, "pause_at": pause_at, "full_at": full_at}
        job |= {"take_over": take_over, "lease_s": lease_s, "overrides": list(overrides), "log": str(self._folder / "log")}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Status, steps and output of what `begin` began."""
        assert self._process.stdout
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def train(self, root: Path | str, home: Path, **how: Any) -> dict[str, Any]:
        self.begin(root, home, **how)
        return self.end()

    @property
    def paused(self) -> Path:
        """What a process that stopped in front of a step writes: its number, and the step."""
        return self._folder / "log.paused"

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)


if __name__ == "__main__":
    main()
