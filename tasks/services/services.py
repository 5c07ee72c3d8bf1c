"""The services that are alive during a run. start.py starts and ends all of them."""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import pyarrow as pa

from nbrl.infra.home import Home
from nbrl.infra.manifest import MANIFEST, manifest_bytes
from nbrl.infra.node_cache import NodeCache, PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.layout.checkpoints import initial_policy, initial_texts
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.model_folder.source import content_digest, files_of
from nbrl.tasks.rollout.finished import FinishedGroups
from nbrl.tasks.rollout.plan import EngineAddress, EnvironmentPlan, RoundPlan, RunnerPlan, Server
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.fleet import EngineFleet, WeightSource
from nbrl.tasks.services.progress import Progress, Titled

if TYPE_CHECKING:  # they import Ray, which evaluations in one process do without
    from nbrl.tasks.services.learner import LearnerService
    from nbrl.tasks.tracking.delivery import Delivery

K = TypeVar("K")
V = TypeVar("V")
TABLES = 8  # so that the rewards of a round are still there when its iteration ends


class Reads:
    """Keeps the tables that were read last, all questions, and the keys of the stages in progress. Threads may share it."""

    def __init__(self, storage: Storage, stages: int = 1) -> None:
        """Make an empty cache for `stages` stages in progress at once."""
        self._storage, self._stages = storage, stages
        self._tables: dict[tuple[str, str], pa.Table] = {}
        self._questions: dict[str, pa.Table] = {}
        self._keys: dict[str, frozenset[str]] = {}
        self._changing = threading.Lock()

    def table(self, artifact: Artifact) -> pa.Table:
        """Return the table of an artifact. Raises DamagedError where it is not what the node wrote."""
        place = artifact.path, artifact.digest
        table = self._tables.get(place)
        if table is None:
            table = self._storage.read_table(*place)
        with self._changing:
            _keep(self._tables, place, table, TABLES)
        return table

    def questions(self, layout: DataLayout, split: str) -> pa.Table:
        """Return the questions of a split. Raises DamagedError where they are not what was written."""
        key = layout.split(split)
        if key not in self._questions:
            self._questions[key] = stored.read(self._storage, layout, split)
        return self._questions[key]

    def keys_of(self, scope: Scope) -> frozenset[str]:
        """Return keys below an iteration or evaluation, as they were when this process came to it."""
        folder = scope.layout.folder
        keys = self._keys.get(folder)
        if keys is None:
            keys = frozenset(self._storage.list(folder))
        with self._changing:
            _keep(self._keys, folder, keys, self._stages)
        return keys


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Put a value in, as the newest, in place of the oldest of too many."""
    kept.pop(key, None)
    kept[key] = value
    for oldest in list(kept)[:-most]:
        del kept[oldest]


class Runners(Protocol):
    """What runs the trajectories of a round, and computes from them: RunnerPool on a cluster, LocalRunner in this process."""

    async def run(
        self,
        rows: list[dict[str, Any]],
        engines: Callable[[], Sequence[EngineAddress]],
        plan: RoundPlan,
        progress: Callable[[int], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> pa.Table:
        """Run all rows; see RunnerPool.run."""
        ...

    def map_tables(self, tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
        """Return `function(table, *arguments)` of every table, in one."""
        ...


@runtime_checkable  # as Prefect asks of the types of a flow's parameters
class RowStream(Protocol):
    """The rows of a stream where they are run; see PooledStream."""

    @property
    def tasks(self) -> Sequence[asyncio.Task[Any]]: ...

    async def add(self, rows: list[dict[str, Any]]) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...


class StreamingRunners(Runners, Protocol):
    """Runners that can run rows as they come; see RunnerPool.stream."""

    def stream(
        self,
        engines: Callable[[], Sequence[EngineAddress]],
        plan: RoundPlan,
        found: Callable[[pa.Table], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> AbstractAsyncContextManager[RowStream]: ...


@dataclass(frozen=True)
class Training:
    """Services that only a training run has. Without a `source`, engines load what is published from the storage."""

    learner: "LearnerService"
    delivery: "Delivery"
    source: WeightSource | None = None


class Services:
    """Handles of the services, without any state of the run. `cache` has copies of checkpoints that lie on a cloud. A pool of
    runners has one batch at a time; of several, batches that are collected at once take them in turn.

    This is not a dataclass, because Prefect traverses the fields of dataclasses that are arguments of flows and tasks.
    """

    def __init__(
        self,
        config: RunConfig,
        storage: Storage,
        cache: NodeCache,
        progress: Progress,
        engines: EngineFleet,
        pools: Sequence[Runners],
        training: Training | None = None,
    ) -> None:
        self.config, self.storage, self.cache, self.progress = config, storage, cache, progress
        self.engines, self._pools, self._training = engines, pools, training
        self.runners, self.reads = pools[0], Reads(storage, stages=config.pipeline.lag + 1)
        self.finished = FinishedGroups(config.rollout.group_size)

    def apart(self, scope: Scope) -> "Services":
        """Return the same services for the batch of an iteration, beside other work: it has runners of its own, and its progress
        is named after it.
        """
        other = copy(self)
        other.progress = Titled(self.progress, scope.title)
        other.runners = self._pools[scope.iteration % len(self._pools)]
        return other

    @property
    def streaming_runners(self) -> StreamingRunners:
        """Return the pool that no evaluation has, if there are several."""
        return cast(StreamingRunners, self._pools[-1])

    @property
    def learner(self) -> "LearnerService":
        return self._trains().learner

    @property
    def delivery(self) -> "Delivery":
        return self._trains().delivery

    @property
    def weight_source(self) -> WeightSource | None:
        return self._trains().source

    def _trains(self) -> Training:
        if self._training is None:
            raise RuntimeError("an evaluation has neither learner nor tracking")
        return self._training

    def read(self, artifact: Artifact) -> pa.Table:
        """Return the table of an artifact. Raises DamagedError where it is not what the node wrote."""
        return self.reads.table(artifact)

    async def serve(self, scope: Scope) -> str:
        """Make every engine serve the weights after `scope.updates` updates, and return their version."""
        version = str(scope.updates)
        await self.engines.serve(self.checkpoint(scope.weights.checkpoint) if scope.updates else None, version)
        return version

    def checkpoint(self, path: str) -> PlacedFolder:
        """Return a checkpoint of the storage, for whichever machine needs it."""
        return PlacedFolder(path, self.storage)


def runner_plan(config: RunConfig, storage: Storage, data: DataLayout, model: PlacedFolder, server: Server | None) -> RunnerPlan:
    """Return the plan of runners for the questions in `data`. With a `server` that samples, `model` is not read."""
    corpora = stored.corpora(storage, data, config.environments)
    environments = {
        name: EnvironmentPlan(corpora.get(name), each.tools, each.prompt, each.session_source())
        for name, each in config.environments.items()
    }
    home, attached = Home(config.home), data.attached_folder
    return RunnerPlan(
        model, environments, attached, storage, config.agent, config.sandbox, config.rollout, home, server, config.nodes
    )


class PlacedModel(NamedTuple):
    """A model for engines and ranks, and all of it but the weights for runners, which need its tokenizer."""

    whole: PlacedFolder
    texts: PlacedFolder


def place(folder: Path, storage: Storage, cluster: bool) -> PlacedModel:
    """Return the model in a folder of this machine. In a cluster of several machines it is stored, once, by its content."""
    if not cluster:
        return PlacedModel(PlacedFolder(str(folder)), PlacedFolder(str(folder)))
    digest, files = content_digest(folder), files_of(folder)
    texts = [path for path in files if path.suffix != ".safetensors"]
    return PlacedModel(_stored(files, storage, initial_policy(digest)), _stored(texts, storage, initial_texts(digest)))


def _stored(files: list[Path], storage: Storage, key: str) -> PlacedFolder:
    if not storage.exists(f"{key}/{MANIFEST}"):
        with tempfile.TemporaryDirectory(prefix="nbrl-model-") as folder:
            for path in files:  # the model's folder itself stays as it is, and may be read-only
                Path(folder, path.name).symlink_to(path.resolve())
            digests = storage.upload_part(Path(folder), key)
        storage.write_bytes(f"{key}/{MANIFEST}", manifest_bytes(digests))
    return PlacedFolder(key, storage)
