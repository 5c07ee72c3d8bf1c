"""Deletes what ended processes left in a run: objects that neither a record nor the result of a node names."""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from nbrl.infra.storage import Storage
from nbrl.tasks.layout import RunLayout, StageLayout, updates_of
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


def sweep(storage: Storage, writer: Writer) -> None:
    """Sweep all finished stages of a run, and its checkpoints. Work of the iteration in progress stays: it is taken up again."""
    layout = writer.run.layout
    keys = storage.list(layout.folder)
    done = {layout.iteration(number).folder for number in range(finished_iterations(keys, layout))}
    done |= {key.partition("/nodes/")[0] for key in keys if key.startswith(f"{layout.evaluations}/") and "/nodes/" in key}
    for folder in sorted(done):
        stage = StageLayout(folder, writer.epoch)
        below = [key for key in keys if key.startswith(f"{folder}/")]
        made = [key for key in below if stage.epoch_of(key)]
        if len({stage.epoch_of(key) for key in made}) > 1 or any(map(stage.is_unfinished, made)):
            storage.delete_keys(set(made) - _named(storage, below))
    newest = newest_record(storage, writer.run)
    _sweep_checkpoints(storage, layout, keys, newest.updates if newest else 0)


def sweep_stage(storage: Storage, stage: StageLayout, artifacts: Iterable[Artifact]) -> None:
    """Delete what a stage made, in whatever epoch, besides the artifacts that its record or result names."""
    named = {key for artifact in artifacts for key in (artifact.path, *artifact.parts)}
    storage.delete_keys(key for key in storage.list(stage.folder) if stage.epoch_of(key) and key not in named)


def _sweep_checkpoints(storage: Storage, layout: RunLayout, keys: Iterable[str], updates: int) -> None:
    """Delete checkpoints that no result names: of an update that was done again, or that never ended."""
    folders = sorted({"/".join(key.split("/")[:4]) for key in keys if key.startswith(f"{layout.checkpoints}/")})
    numbers = [updates_of(folder) for folder in folders]
    doubtful = [folder for folder, number in zip(folders, numbers, strict=True) if number > updates or numbers.count(number) > 1]
    if doubtful:
        named = _named(storage, [key for key in keys if "/nodes/update-" in key])
        for folder in doubtful:
            if folder not in named:
                storage.delete(folder)


def _named(storage: Storage, keys: Iterable[str]) -> set[str]:
    """What all records and results among `keys` name."""
    files = [key for key in keys if key.endswith("/record.json") or (key.endswith(".json") and "/nodes/" in key)]
    return {name for key in files for name in _Names.model_validate(storage.read_json(key)).named()}
