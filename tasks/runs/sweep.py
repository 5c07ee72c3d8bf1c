"""Deletes what ended processes left, and what was done again: what no record, evaluation or work in progress names."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress

from nbrl.infra.errors import DamagedError, StorageError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import BrokenInvariantError, TakenOverError
from nbrl.tasks.layout.checkpoints import updates_of
from nbrl.tasks.layout.stages import StageLayout, of_node
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.epochs import commit
from nbrl.tasks.runs.history import Record, finished_iterations, read_record
from nbrl.tasks.runs.kept import read_kept
from nbrl.tasks.runs.pins import champions
from nbrl.tasks.runs.results import NodeResult, is_to_come, merge
from nbrl.tasks.runs.retention import delete_late_states
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.runs.writer import Writer, writing

UPDATE = "/nodes/update-"
NEWEST = 2  # finished iterations that are looked at once more


@asynccontextmanager
async def swept_writing(run: Run, config: RunConfig, take_over: bool, say: Callable[[str], None]) -> AsyncIterator[Writer]:
    """Yield as `writing` does; what this process made is swept if another one takes the run over."""
    storage, settings = Storage(config.storage), config.model_dump(mode="json")
    writer: Writer | None = None
    try:
        async with writing(run, storage, take_over, say, settings, await asyncio.to_thread(commit)) as writer:
            yield writer
    except TakenOverError:
        if writer is not None:
            with suppress(StorageError, BrokenInvariantError):  # what stays is swept at the next start
                await asyncio.to_thread(sweep, storage, writer, own=True)
        raise


def sweep(storage: Storage, writer: Writer, own: bool = False) -> None:
    """Sweep all finished stages of a run, and its checkpoints. Work of the iteration in progress stays: it is taken up again.

    With `own`, only what the writer's own epoch made goes, which is what a process that was taken over may delete.
    """
    layout = writer.run.layout
    keys = storage.list(layout.folder)
    present = frozenset(keys)
    finished = finished_iterations(keys, layout)
    done = {layout.iteration(number).folder: number for number in range(finished)}
    evaluated = {"/".join(key.split("/")[:4]) for key in keys if key.startswith(f"{layout.evaluations}/") and of_node(key)}
    by_stage: dict[str, list[str]] = {}
    for key in keys:
        by_stage.setdefault("/".join(key.split("/")[:4]), []).append(key)
    for folder in sorted({*done, *evaluated}):
        stage, below = StageLayout(folder, writer.epoch), by_stage[folder]
        made = {key: epoch for key in below if (epoch := stage.epoch_of(key))}
        # A stage that one process made alone is swept before the copy of its record is written; later, only a runner that was
        # out of reach can have left something, and that soon.
        if len(set(made.values())) > 1 or stage.record_copy not in present or done.get(folder, 0) >= finished - NEWEST:
            results = [] if folder in done else _results(storage, stage, below)
            artifacts = (
                _record(storage, writer, done[folder]).artifacts if folder in done else [each.artifact for each in results]
            )
            chosen = {key for key, epoch in made.items() if epoch == writer.epoch or not own}
            to_come = {key for key in made if folder not in done and is_to_come(key, results)}
            storage.delete_keys(chosen - to_come - _named(artifacts))
            if folder in done and not own:
                merge(storage, stage, artifacts)
    _sweep_checkpoints(storage, writer, keys, finished, own)
    if not own:
        _complete_copies(storage, writer, present, finished)
    storage.delete_unfinished(layout.folder)


def sweep_stage(storage: Storage, stage: StageLayout, artifacts: Collection[Artifact]) -> None:
    """Delete what a stage made, in its epoch or an earlier one, besides the artifacts that its record or result names.

    Results of nodes that were done again go too, with the checkpoint that such an update made.
    """
    keys, named = storage.list(stage.folder), _named(artifacts)
    storage.delete_keys(key for key in keys if "" < stage.epoch_of(key) <= stage.epoch and key not in named)
    results = [key for key in keys if key.startswith(f"{stage.results}/")]
    unnamed = [key for key in keys if UPDATE in key and key not in results]
    if not unnamed and len(results) == len({artifact.path for artifact in artifacts}):
        return
    for key in [*results, *unnamed]:
        path = artifact.path if (artifact := _artifact(storage, key)) else ""
        if path and path not in named and UPDATE in key:
            storage.delete(path)
        if path not in named and key in results:
            storage.delete(key)


def _sweep_checkpoints(storage: Storage, writer: Writer, keys: Iterable[str], finished: int, own: bool) -> None:
    """Delete the checkpoints that neither a record nor an update in progress names: of one done again, or that never ended."""
    layout = writer.run.layout
    mine = [key for key in keys if key.startswith(f"{layout.checkpoints}/") and (not own or writer.epoch in key)]
    delete_late_states(storage, mine)
    folders = sorted({"/".join(key.split("/")[:4]) for key in mine})
    newest = _record(storage, writer, finished - 1).updates if finished else 0
    numbers = [updates_of(folder) for folder in folders]
    pairs = list(zip(folders, numbers, strict=True))
    doubtful = [folder for folder, number in pairs if own or number > newest or numbers.count(number) > 1]
    if doubtful:
        named = {_record(storage, writer, number).checkpoint for number in range(finished)}
        later = [key for key in keys if UPDATE in key and int(key.split("/")[3]) >= finished]
        named |= {artifact.path for key in later if (artifact := _artifact(storage, key))}
        try:
            named |= champions(storage)
        except DamagedError:  # which one it names is unknown
            return
        for folder in doubtful:
            if folder not in named:
                storage.delete(folder)


def _record(storage: Storage, writer: Writer, iteration: int) -> Record:
    record = read_record(storage, writer.run, iteration)
    if record is None:
        raise BrokenInvariantError(f"the record of iteration {iteration + 1} of run {writer.run.name!r} was deleted meanwhile")
    return record


def _complete_copies(storage: Storage, writer: Writer, there: Collection[str], finished: int) -> None:
    """Make the copies of records whose process died before it did."""
    for number in range(finished):
        if (copy := writer.run.layout.iteration(number).record_copy) not in there:
            storage.write_json(copy, _record(storage, writer, number).model_dump(mode="json"))


def _results(storage: Storage, stage: StageLayout, keys: Iterable[str]) -> list[NodeResult]:
    """Return the results of a stage's nodes, without those that are damaged: such a node is done again."""
    return list(filter(None, (_result(storage, key) for key in keys if key.startswith(f"{stage.results}/"))))


def _result(storage: Storage, key: str) -> NodeResult | None:
    try:
        return read_kept(storage, key, NodeResult)
    except DamagedError:
        return None


def _artifact(storage: Storage, result: str) -> Artifact | None:
    """Return what a node made; None where its result is damaged."""
    artifact = _result(storage, result)
    return artifact.artifact if artifact else None


def _named(artifacts: Iterable[Artifact]) -> set[str]:
    return {key for artifact in artifacts for key in (artifact.path, *artifact.parts)}
