"""Checks the chain of updates: each checkpoint was made from the one before it and from the recorded trajectories."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from nbrl.infra.manifest import MANIFEST, check_folder, part_digest
from nbrl.infra.storage import Storage, sha256
from nbrl.tasks.layout.checkpoints import HF, RESULT
from nbrl.tasks.learner.checkpoint.identity import order_digest
from nbrl.tasks.learner.orders import UpdateResult, read_tables
from nbrl.tasks.nodes.update import make_order
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Scope, Weights


def check_update(storage: Storage, config: RunConfig, run: Run, record: Record, before: Weights, staleness: int) -> Iterator[str]:
    """Contradictions of the checkpoint of one iteration, whose batch weights `staleness` updates older sampled.

    The weights of one that retention deleted are not looked at, its order is.
    """
    if record.policy.updates == before.updates:
        if record.policy != before:
            yield "no update was made, but the weights are others"
        return
    updated = next((artifact for artifact in record.artifacts if artifact.path == record.checkpoint), None)
    if updated is None or record.policy != Weights(updates=before.updates + 1, checkpoint=updated.path, digest=updated.digest):
        yield "the record names other weights than its update made"
        return
    for key, digest in updated.parts.items():
        storage.read_bytes(key, digest)
    try:
        made_by = UpdateResult.model_validate_json(storage.read_bytes(f"{updated.path}/{RESULT}")).order
    except ValidationError:
        yield f"{storage.uri(f'{updated.path}/{RESULT}')} is damaged: it is no result of an update; bring it back from a copy"
    else:
        if made_by != expected_order(storage, config, run, record, before, staleness):
            yield "the checkpoint was not made by these trajectories and advantages from the checkpoint before it"
    if storage.exists(f"{updated.path}/{MANIFEST}"):
        yield from _check_weights(storage, updated.path, updated.digest)


def _check_weights(storage: Storage, checkpoint: str, digest: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = storage.local_path(checkpoint)
        if folder is None:
            folder = storage.download_folder(checkpoint, Path(scratch, "checkpoint"))
        check_folder(folder)
    if part_digest(storage.read_manifest(checkpoint), f"{HF}/") != digest:
        yield "the checkpoint holds other weights than the update made"


def expected_order(storage: Storage, config: RunConfig, run: Run, record: Record, before: Weights, staleness: int) -> str:
    """The digest of the order that an iteration's artifacts make."""
    scope = Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch="", iteration=record.iteration, weights=before)
    (advantages,) = (artifact for artifact in record.artifacts if artifact.path.endswith("/advantages.parquet"))
    trajectories = [round_.trajectories for round_ in record.rounds]
    order = make_order(config, scope, advantages, trajectories, staleness)
    start = sha256(storage.read_bytes(f"{before.checkpoint}/{RESULT}")) if before.checkpoint else order.initial
    return order_digest(order, read_tables(order, storage), start)
