"""The services that are alive during a run. start.py starts and ends all of them."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import pyarrow as pa

from nbrl.infra.node_cache import NodeCache
from nbrl.infra.placed_folder import PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.tasks.rollout.pool import RunnerPool
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.fleet import EngineFleet, WeightSource
from nbrl.tasks.services.learner import LearnerService
from nbrl.tasks.services.progress import Progress, Titled
from nbrl.tasks.services.reads import Reads
from nbrl.tasks.tracking.delivery import Delivery


@dataclass(frozen=True)
class Training:
    """Services that only a training run has. Without a `source`, engines load what is published from the storage."""

    learner: LearnerService
    delivery: Delivery
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
        pools: Sequence[RunnerPool],
        training: Training | None = None,
    ) -> None:
        self.config, self.storage, self.cache, self.progress = config, storage, cache, progress
        self.engines, self._pools, self._training = engines, pools, training
        self.runners, self.reads = pools[0], Reads(storage, stages=config.pipeline.lag + 1)

    def apart(self, scope: Scope) -> "Services":
        """The same services for the batch of an iteration, beside other work: it has runners of its own, and its progress is
        named after it.
        """
        other = copy(self)
        other.progress = Titled(self.progress, scope.title)
        other.runners = self._pools[scope.iteration % len(self._pools)]
        return other

    @property
    def learner(self) -> LearnerService:
        return self._trains().learner

    @property
    def delivery(self) -> Delivery:
        return self._trains().delivery

    @property
    def weight_source(self) -> WeightSource | None:
        return self._trains().source

    def _trains(self) -> Training:
        if self._training is None:
            raise RuntimeError("an evaluation has neither learner nor tracking")
        return self._training

    def read(self, artifact: Artifact) -> pa.Table:
        """The table of an artifact. Raises DamagedError where it is not what the node wrote."""
        return self.reads.table(artifact)

    async def serve(self, scope: Scope) -> str:
        """Make every engine serve the weights after `scope.updates` updates, and return their version."""
        version = str(scope.updates)
        await self.engines.serve(self.checkpoint(scope.weights.checkpoint) if scope.updates else None, version)
        return version

    def checkpoint(self, path: str) -> PlacedFolder:
        """A checkpoint of the storage, for whichever machine needs it."""
        return PlacedFolder(path, self.storage)
