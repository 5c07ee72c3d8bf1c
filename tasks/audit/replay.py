"""Does an update of a run again, and compares the weights."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from nbrl.infra import ray_cluster
from nbrl.infra.home import Home
from nbrl.infra.manifest import part_digest
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.parts import INDEX, parts_of
from nbrl.infra.ray_cluster import RaySettings
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.recompute import same
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import HF, RESULT
from nbrl.tasks.learner.driver.handle import LearnerHandle
from nbrl.tasks.learner.orders import TeachOrder, UpdateOrder
from nbrl.tasks.learner.places import Places
from nbrl.tasks.model_folder.source import content_digest, fetch
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.orders import can_train_on, make_order, since_state, taught_in
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Scope, Weights
from nbrl.tasks.runs.teacher import teacher_folder
from nbrl.tasks.seeds import derive_seed

STOP_S = 5.0


def replay(storage: Storage, config: RunConfig, run: Run, record: Record, before: Weights, staleness: int) -> Iterator[str]:
    """Yield a contradiction if the update of an iteration, done again, makes other weights. On a CPU they are equal bit for bit.
    A teacher that is at hand is asked again, too.

    Raises ConfigError if the iteration made no update, or the checkpoint that it starts from is gone.
    """
    if record.policy == before:
        raise ConfigError(f"iteration {record.iteration + 1} made no update that could be done again")
    if before.checkpoint and not can_train_on(storage, config, run, before):
        raise ConfigError(
            f"the update of iteration {record.iteration + 1} cannot be done again: the checkpoint that it starts from was "
            "deleted, or what is needed to make its optimiser state again"
        )
    if record.advantages is None:
        yield f"the record of iteration {record.iteration + 1} names no advantages from which its update was made"
        return
    trajectories = [round_.trajectories for round_ in record.rounds]
    scope = Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch="", iteration=record.iteration, weights=before)
    with tempfile.TemporaryDirectory(prefix="nbrl-replay-") as scratch:
        repeats = since_state(storage, config, run, before)
        order = make_order(config, scope, record.advantages, trajectories, staleness, repeats, taught_in(record))
        copy = _inputs_of(storage, order, Path(scratch))
        with _teacher(config, storage, run) as teacher:
            said = asyncio.run(_update(config, run, order, copy, Path(scratch) / "train", teacher))
        if said is not None and order.teacher is not None and not same(copy.read_table(order.teacher.key), said):
            yield f"the teacher of iteration {record.iteration + 1} does not say of the tokens what was recorded"
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
            shutil.copytree(local, place, copy_function=_linked)
        else:
            storage.download_folder(start, place)
    return copy


def _linked(source: str, target: str) -> None:
    """Make a file another name for the same content, which nothing changes, or a copy on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def _teacher(config: RunConfig, storage: Storage, run: Run) -> Iterator[PlacedFolder | None]:
    """Yield the teacher of the run, where it has one that is at hand."""
    with ExitStack() as stack:
        folder = None
        with suppress(ConfigError):
            folder = stack.enter_context(teacher_folder(config, storage))
        yield PlacedFolder(str(folder)) if folder is not None and content_digest(folder) == run.teacher else None


async def _update(
    config: RunConfig, run: Run, order: UpdateOrder, copy: Storage, notes: Path, teacher: PlacedFolder | None
) -> pa.Table | None:
    """Carry out the order, and return what the teacher says now."""
    places = Places(PlacedFolder(str(fetch(config.policy))), copy, teacher=teacher)
    try:
        await asyncio.to_thread(ray_cluster.start, RaySettings(), Home(config.home).logs)
        learner = LearnerHandle.start(
            config.update.model_copy(update={"resources": {}}), places, str(notes), derive_seed(run.seed, "learner")
        )
        try:
            await learner.ready()
            await learner.update(order)
            if teacher is None:
                return None
            return await learner.teach(TeachOrder(trajectories=order.trajectories, advantages=order.advantages))
        finally:
            learner.stop(STOP_S)
    finally:
        ray_cluster.stop()
