"""What is alive while a run runs. Everything here is started by start.py and ended by it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.tasks.environments.sources import GeneratedData
from nbrl.tasks.learner.driver.handle import LearnerHandle
from nbrl.tasks.rollout.pool import HostPool
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Scope
from nbrl.tasks.services.fleet import EngineFleet


class Services:
    """Handles, no state of the run. `learner` is there while training, and only then."""

    def __init__(
        self,
        config: RunConfig,
        storage: Storage,
        scratch: Path,
        engines: EngineFleet,
        hosts: HostPool,
        learner: LearnerHandle | None,
        tracking: Tracking | None,
    ) -> None:
        self.config, self.storage, self.scratch = config, storage, scratch
        self.engines, self.hosts = engines, hosts
        self._learner, self._tracking = learner, tracking
        self.warn: Callable[[str], None] = lambda text: None
        self.progress: Callable[[int], None] = lambda finished: None

    @property
    def learner(self) -> LearnerHandle:
        if self._learner is None:
            raise RuntimeError("this run has no learner: it only evaluates")
        return self._learner

    @property
    def tracking(self) -> Tracking:
        if self._tracking is None:
            raise RuntimeError("this run has no tracking: it only evaluates")
        return self._tracking

    def follow(self, progress: Callable[[int], None]) -> None:
        """Tell `progress` how many trajectories of the work at hand are finished."""
        self.progress = progress

    @property
    def evaluation_size(self) -> int:
        """Trajectories of one evaluation, when every held-out question is there."""
        settings, data = self.config.evaluate, self.config.data
        questions = [n for n in (settings.questions, data.held_out if isinstance(data, GeneratedData) else None) if n]
        return min(questions, default=0) * settings.samples

    async def serve(self, scope: Scope) -> str:
        """The version that `scope.updates` updates made, served by every engine: published again where another one is."""
        version = str(scope.updates)

        async def bring() -> Path | None:
            return await self.local_folder(scope.checkpoint(scope.updates)) if scope.updates else None

        await self.engines.serve(version, bring)
        return version

    async def local_folder(self, path: str) -> Path:
        """A folder of the storage as a local path; fetched into scratch when the storage is remote."""
        local = self.storage.local_path(path)
        if local is not None:
            return local
        copy = self.scratch / path
        if not copy.exists():
            await asyncio.to_thread(self.storage.download_folder, path, copy)
        return copy
