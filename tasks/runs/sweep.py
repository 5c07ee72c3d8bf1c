"""Deletes what ended processes left in a run: objects that neither a record nor the result of a node names."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from nbrl.infra.storage import Storage
from nbrl.tasks.layout import StageLayout, updates_of
from nbrl.tasks.runs.history import finished_iterations, newest_record
from nbrl.tasks.runs.lease import Writer
from nbrl.tasks.runs.scope import Artifact


class _Names(BaseModel):
    """What a record or the result of a node names; its other fields do not matter here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    artifact: Artifact | None = None
    artifacts: list[Artifact] = []

    def named(self) -> set[str]:
        artifacts = [*self.artifacts, *filter(None, [self.artifact])]
        return {key for artifact in artifacts for key in (artifact.path, *artifact.parts)}


def sweep(storage: Storage, writer: Writer, own: bool = False) -> None:
    """Sweep all finished stages of a run, and its checkpoints. Work of the iteration in progress stays: it is taken up again.

    With `own`, only what the writer's own epoch made goes, which is what a process that was taken over may delete.
    """
    layout = writer.run.layout
    keys = storage.list(layout.folder)
    done = {layout.iteration(number).folder for number in range(finished_iterations(keys, layout))}
    done |= {key.partition("/nodes/")[0] for key in keys if key.startswith(f"{layout.evaluations}/") and "/nodes/" in key}
    for folder in sorted(done):
        stage = StageLayout(folder, writer.epoch)
        below = [key for key in keys if key.startswith(f"{folder}/")]
        made = {key: epoch for key in below if (epoch := stage.epoch_of(key))}
        if len(set(made.values())) > 1 or any(map(stage.is_unfinished, made)):
            chosen = {key for key, epoch in made.items() if epoch == writer.epoch or not own}
            storage.delete_keys(chosen - _named(storage, below))
    newest = newest_record(storage, writer.run)
    checkpoints = [key for key in keys if key.startswith(f"{layout.checkpoints}/") and (not own or writer.epoch in key)]
    updates = [key for key in keys if "/nodes/update-" in key]
    _sweep_checkpoints(storage, checkpoints, updates, newest.updates if newest else 0, own)


def sweep_stage(storage: Storage, stage: StageLayout, artifacts: Iterable[Artifact]) -> None:
    """Delete what a stage made, in whatever epoch, besides the artifacts that its record or result names."""
    named = {key for artifact in artifacts for key in (artifact.path, *artifact.parts)}
    storage.delete_keys(key for key in storage.list(stage.folder) if stage.epoch_of(key) and key not in named)


def _sweep_checkpoints(storage: Storage, keys: Iterable[str], results: Iterable[str], updates: int, own: bool) -> None:
    """Delete those of the checkpoints with `keys` that no result names: of an update that was done again, or never ended."""
    folders = sorted({"/".join(key.split("/")[:4]) for key in keys})
    numbers = [updates_of(folder) for folder in folders]
    pairs = list(zip(folders, numbers, strict=True))
    doubtful = [folder for folder, number in pairs if own or number > updates or numbers.count(number) > 1]
    if doubtful:
        named = _named(storage, results)
        for folder in doubtful:
            if folder not in named:
                storage.delete(folder)


def _named(storage: Storage, keys: Iterable[str]) -> set[str]:
    """What all records and results among `keys` name."""
    files = [key for key in keys if key.endswith("/record.json") or (key.endswith(".json") and "/nodes/" in key)]
    return {name for key in files for name in _Names.model_validate(storage.read_json(key)).named()}
