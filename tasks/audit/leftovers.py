"""Finds objects of a run that nothing names."""

from collections.abc import Collection, Iterator

from nbrl.infra.storage import Storage
from nbrl.tasks.layout.checkpoints import updates_of
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.layout.stages import StageLayout
from nbrl.tasks.runs.champions import champions
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.results import NodeResult, is_to_come

PARTIAL = ".partial"


def leftovers(
    storage: Storage, run: RunLayout, records: Collection[Record], results: Collection[NodeResult], lag: int = 0
) -> Iterator[str]:
    """Keys below finished iterations, evaluations and checkpoints that neither a record nor the result of a node names.

    What the iteration in progress and the `lag` after it have made so far is no leftover, nor is what belongs to an evaluation
    that has no result yet.
    """
    artifacts = [artifact for record in records for artifact in record.artifacts] + [result.artifact for result in results]
    named = {key for artifact in artifacts for key in (artifact.path, *artifact.parts)} | champions(storage)
    in_progress = {run.iteration(len(records) + ahead).folder for ahead in range(lag + 1)}
    updates = max((record.updates for record in records), default=0)
    for key in storage.list(run.folder):
        folder = "/".join(key.split("/")[:4])
        of_stage = key.startswith((f"{run.iterations}/", f"{run.evaluations}/")) and folder not in in_progress
        if key.startswith(f"{run.evaluations}/") and is_to_come(key, results):
            continue
        if of_stage and StageLayout(folder, "").epoch_of(key) and key not in named:
            yield f"{key} is left over: nothing names it"
        newest = updates_of(folder) >= updates if key.startswith(f"{run.checkpoints}/") else False
        if newest and folder.endswith(PARTIAL):  # its state is being written, or a kill cut it off
            continue
        if key.startswith(f"{run.checkpoints}/") and folder not in named and updates_of(folder) <= updates:
            yield f"{key} is left over: no update made its checkpoint"
