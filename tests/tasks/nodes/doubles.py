"""Doubles of what is alive while a run runs: another kind of engine, runners that play given ends, a delivery that counts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.agent.trajectory import Node, Status, Step, Trajectory, to_table
from nbrl.infra.engine.weight_group import WeightComparison
from nbrl.infra.node_cache import NodeCache, NodeSettings, PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.rollout import chunks
from nbrl.tasks.rollout.chunks import index_of
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan
from nbrl.tasks.runs.epochs import Epoch
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.services.fleet import EngineFleet, Finding, WeightSource
from nbrl.tasks.services.services import Services, Training

SCOPE = Scope(
    run="r",
    run_id="x",
    seed=3,
    epoch="e0001-abcdef",
    iteration=4,
    weights=Weights(updates=2, checkpoint="runs/r/checkpoints/000002-e0001-abcdef", digest="w2"),
)
OURS = Epoch(name=SCOPE.epoch, host="here", process="here/1/2", started=0.0, version="1")


class DoubleFleet:
    """An EngineFleet of no processes. `error` is what its log-probs are off by; `lies` is the version it answers with, if any.

    `weights` is what it finds of its weights.
    """

    reports_version = True

    def __init__(
        self, version: str = "initial", error: float = 0.0, lies: str | None = None, weights: WeightComparison | None = None
    ) -> None:
        self.version, self.error, self.lies, self.weights = version, error, lies, weights
        self.published: list[tuple[PlacedFolder | None, str]] = []
        self.lent: list[str] = []  # the versions that it served when it lent its memory

    def addresses(self, version: str) -> list[EngineAddress]:
        return [EngineAddress("double://1")]

    async def lend_memory(self) -> None:
        self.lent.append(self.version)

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        self.published.append((checkpoint, version))
        self.version = version

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        if self.version != version:
            await self.publish(checkpoint, version)

    async def prove(self, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        if (found := self.lies or self.version) != version:
            raise BrokenInvariantError(f"double://1 serves {found!r} after publishing {version!r}")
        return [Finding("double://1", [self.error for each in sequences for _ in each.logprobs], self.weights)]

    def check_health(self) -> None:
        pass


class DoubleRunners:
    """Plays a trajectory for every row: `ends` are their statuses in turn, `version` the weights they were sampled from."""

    def __init__(self, storage: Storage, version: str, ends: Sequence[Status] = (Status.ANSWERED,)) -> None:
        self._storage, self._version, self._ends = storage, version, ends
        self.asked: list[dict[str, Any]] = []

    async def run(
        self,
        rows: list[dict[str, Any]],
        engines: Callable[[], Sequence[EngineAddress]],
        plan: RoundPlan,
        progress: Callable[[int], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> pa.Table:
        healthy()
        self.asked += rows
        self.earlier, self.max_steps = plan.earlier, plan.max_steps
        played = [self._play(row, self._ends[number % len(self._ends)]) for number, row in enumerate(rows)]
        key, digest = chunks.write(self._storage, plan.chunks, to_table(played))
        progress(len(played))
        return index_of(played, key, digest)

    def map_tables(self, tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
        return pa.concat_tables([function(table, *arguments) for table in tables])

    def _play(self, row: dict[str, Any], status: Status) -> Trajectory:
        sampled = Node(parent=0, kind="sampled", step=0, token_ids=[1, 2], logprobs=[-0.5, -0.5], weights_version=self._version)
        failed = status is Status.FAILED
        return Trajectory(
            id=row["id"],
            group=row["group"],
            sample=row["sample"],
            question=row["question"],
            ability=row["ability"],
            status=status,
            answer="42" if status is Status.ANSWERED else None,
            failure="the wire was cut" if failed else "",
            nodes=[] if failed else [Node(parent=-1, kind="system", step=-1, token_ids=[0]), sampled],
            steps=[] if failed else [Step(think="a thought of some length", code="print(42)", cell_status="ok")],
        )


class DoubleDelivery:
    """Counts how often it was told that there is something to deliver."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


class DoubleProgress:
    """Remembers what it hears, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def begin(self, title: str) -> None:
        self.heard.append(("begin", title))

    def started(self, name: str) -> None:
        self.heard.append(("started", name))

    def advanced(self, name: str, done: int, total: int) -> None:
        self.heard.append(("advanced", name, done, total))

    def ended(self, name: str, seconds: float) -> None:
        self.heard.append(("ended", name))

    def say(self, text: str) -> None:
        self.heard.append(("say", text))


def services(
    folder: Path,
    fleet: EngineFleet | None = None,
    ends: Sequence[Status] = (Status.ANSWERED,),
    version: str = "2",
    overrides: Sequence[str] = (),
) -> Services:
    """Services over a local storage below `folder`, all doubles but that."""
    storage = Storage(StorageSettings(root=str(folder / "storage")))
    runners: Any = DoubleRunners(storage, version, ends)
    delivery: Any = DoubleDelivery()
    config = load("tiny-cpu", ["rollout.prompts=4", "rollout.group_size=2", *overrides])
    learner: Any = None
    training = Training(learner, delivery)
    return Services(
        config,
        storage,
        NodeCache(NodeSettings(cache=str(folder / "cache"))),
        DoubleProgress(),
        fleet or DoubleFleet("2"),
        [runners],
        training,
    )


def prompts(made: Services, count: int = 2) -> Artifact:
    """An artifact of questions that all have the answer 42."""
    names = [f"q{number}" for number in range(count)]
    table = pa.table(
        {
            "id": names,
            "group": names,
            "question": [f"What is {name}?" for name in names],
            "answers": [["42"]] * count,
            "rule": ["qa"] * count,
            "reference": [""] * count,
            "ability": ["qa"] * count,
            "source": ["test"] * count,
            "environment": ["e"] * count,
            "files": [[]] * count,
            "collect": [[]] * count,
            "max_steps": pa.nulls(count, pa.int32()),
            "deadline_s": pa.nulls(count, pa.float64()),
        }
    )
    path = SCOPE.layout.round(0).prompts
    return Artifact(path=path, digest=made.storage.write_table(path, table))
