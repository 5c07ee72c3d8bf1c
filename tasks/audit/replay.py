"""Does an update of a run again, and compares the weights."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nbrl.infra import ray_cluster
from nbrl.infra.home import Home
from nbrl.infra.manifest import part_digest
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.parts import INDEX, parts_of
from nbrl.infra.ray_cluster import RaySettings
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import HF, RESULT
from nbrl.tasks.learner.driver.handle import LearnerHandle
from nbrl.tasks.learner.orders import UpdateOrder
from nbrl.tasks.learner.places import Places
from nbrl.tasks.model_folder.source import fetch
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.orders import can_train_on, make_order, since_state, taught_in
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Scope, Weights
from nbrl.tasks.seeds import derive_seed

STOP_S = 5.0


def replay(storage: Storage, config: RunConfig, run: Run, record: Record, before: Weights, staleness: int) -> Iterator[str]:
    """Yield a contradiction if the update of an iteration, done again, makes other weights. On a CPU they are equal bit for bit.

    Raises ConfigError if the iteration made no update, or the checkpoint that it starts from is gone.
    """
    if record.policy == before:
        raise ConfigError(f"iteration {record.iteration + 1} made no update that could be done again")
    if before.checkpoint and not can_train_on(storage, config, run, before):
        raise ConfigError(
            f"the update of iteration {record.iteration + 1} cannot be done again: the checkpoint that it starts from was "
            "deleted, or what is needed to make its optimiser state again"
        )
    advantages = next(artifact for artifact in record.artifacts if artifact.path.endswith("/advantages.parquet"))
    trajectories = [round_.trajectories for round_ in record.rounds]
    scope = Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch="", iteration=record.iteration, weights=before)
    with tempfile.TemporaryDirectory(prefix="nbrl-replay-") as scratch:
        repeats = since_state(storage, config, run, before)
        order = make_order(config, scope, advantages, trajectories, staleness, repeats, taught_in(record))
        copy = _inputs_of(storage, order, Path(scratch))
        asyncio.run(_update(config, run, order, copy, Path(scratch) / "train"))
        made = part_digest(copy.read_manifest(order.checkpoint_out), f"{HF}/")
    if made != record.weights:
        number = record.iteration + 1
        yield f"the update of iteration {number} done again makes other weights ({made[:12]}, not {record.weights[:12]})"


def _inputs_of(storage: Storage, order: UpdateOrder, folder: Path) -> Storage:
    """Return a storage in a new folder with what the order reads, so that what it makes is not written to the run's."""
    copy = Storage(StorageSettings(root=str(folder / "storage")))
    for table in (table for each in (order, *order.repeats) for table in each.tables):
        copy.write_bytes(table.key, storage.read_bytes(table.key, table.digest))
        if table.key.endswith(INDEX):
            for part, digest in parts_of(storage.read_index(table.key)).items():
                copy.write_bytes(part, storage.read_bytes(part, digest))
    for key in (f"{each.checkpoint_out}/{RESULT}" for each in order.repeats):
        copy.write_bytes(key, storage.read_bytes(key))
    if (start := order.base) is not None:
        place = folder / "storage" / start
        place.parent.mkdir(parents=True, exist_ok=True)
        if (local := storage.local_path(start)) is not None:
            place.symlink_to(local, target_is_directory=True)
        else:
            storage.download_folder(start, place)
    return copy


async def _update(config: RunConfig, run: Run, order: UpdateOrder, copy: Storage, notes: Path) -> None:
    places = Places(PlacedFolder(str(fetch(config.policy))), copy)
    try:
        await asyncio.to_thread(ray_cluster.start, RaySettings(), Home(config.home).logs)
        learner = LearnerHandle.start(
            config.update.model_copy(update={"resources": {}}), places, str(notes), derive_seed(run.seed, "learner")
        )
        try:
            await learner.ready()
            await learner.update(order)
        finally:
            learner.stop(STOP_S)
    finally:
        ray_cluster.stop()
