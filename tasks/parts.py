"""The live parts a node works with. Everything here is started by tasks.start and ended by it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from infra.engine.client import EngineClient
from infra.engine.server import EngineServer
from infra.errors import EngineError
from infra.storage import Storage
from infra.tracking import Tracking
from tasks.config import RunConfig
from tasks.data import GeneratedData
from tasks.rollout.pool import HostPool
from tasks.update.handle import LearnerHandle


class Parts:
    """Handles, no state of the run. `learner` is there while training, and only then."""

    def __init__(
        self,
        config: RunConfig,
        storage: Storage,
        scratch: Path,
        initial: Path,
        servers: list[EngineServer],
        engines: list[EngineClient],
        hosts: HostPool,
        learner: LearnerHandle | None,
        tracking: Tracking | None,
    ) -> None:
        self.config, self.storage, self.scratch, self.initial = config, storage, scratch, initial
        self._servers, self.engines, self.hosts = servers, engines, hosts
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

    def check_health(self) -> None:
        """Raises EngineError as soon as an engine is gone, so that nobody waits for it."""
        for server in self._servers:
            if not server.alive():
                raise EngineError(f"the engine at {server.url} ended: {server.last_words()}")

    async def local_folder(self, path: str) -> Path:
        """A folder of the storage as a local path; fetched into scratch when the storage is remote."""
        local = self.storage.local_path(path)
        if local is not None:
            return local
        copy = self.scratch / path
        if not copy.exists():
            await asyncio.to_thread(self.storage.download_folder, path, copy)
        return copy
