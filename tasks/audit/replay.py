"""Does an update of a run again, and compares the weights."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nbrl.infra import ray_cluster
from nbrl.infra.home import Home
from nbrl.infra.manifest import part_digest
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout import HF
from nbrl.tasks.learner.driver.handle import LearnerHandle
from nbrl.tasks.learner.orders import UpdateOrder
from nbrl.tasks.model_folder.source import fetch
from nbrl.tasks.nodes.update import make_order
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.retention import can_train_on
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Scope, Weights
from nbrl.tasks.seeds import derive_seed

STOP_S = 5.0


def replay(storage: Storage, config: RunConfig, run: Run, record: Record, before: Weights) -> Iterator[str]:
    """A contradiction if the update of an iteration, done again, makes other weights. On a CPU they are equal bit for bit.

    Raises ConfigError if the iteration made no update, or the checkpoint that it starts from is gone.
    """
    if record.policy == before:
        raise ConfigError(f"iteration {record.iteration + 1} made no update that could be done again")
    if before.checkpoint and not can_train_on(storage, before.checkpoint):
        raise ConfigError(
            f"the update of iteration {record.iteration + 1} cannot be done again: the checkpoint that it starts from was "
            "deleted, or kept without its optimiser state"
        )
    advantages = next(artifact for artifact in record.artifacts if artifact.path.endswith("/advantages.parquet"))
    trajectories = [round_.trajectories for round_ in record.rounds]
    scope = Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch="", iteration=record.iteration, weights=before)
    with tempfile.TemporaryDirectory(prefix="nbrl-replay-") as scratch:
        folder = Path(scratch)
        start = storage.local_path(before.checkpoint) if before.checkpoint else None
        if before.checkpoint and start is None:
            start = storage.download_folder(before.checkpoint, folder / "before")
        order = make_order(config, storage, scope, advantages, trajectories, start, folder / "tables", str(folder / "out"))
        asyncio.run(_update(config, run, order, folder / "train"))
        made = part_digest(folder / "out", f"{HF}/")
    if made != record.weights:
        number = record.iteration + 1
        yield f"the update of iteration {number} done again makes other weights ({made[:12]}, not {record.weights[:12]})"


async def _update(config: RunConfig, run: Run, order: UpdateOrder, folder: Path) -> None:
    try:
        await asyncio.to_thread(ray_cluster.start, config.ray, Home(config.home).logs)
        learner = LearnerHandle.start(config.update, str(fetch(config.policy)), str(folder), derive_seed(run.seed, "learner"))
        try:
            await learner.ready()
            await learner.update(order)
        finally:
            learner.stop(STOP_S)
    finally:
        ray_cluster.stop()
