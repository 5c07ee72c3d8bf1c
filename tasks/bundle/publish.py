"""Writes a run as a folder that strangers can verify: what its records name, nothing personal, and a list over all of it."""

import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import pyarrow as pa

from nbrl.infra.arrow_files import UnfitTableError
from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.bundle.card import card
from nbrl.tasks.bundle.contents import (
    CARD,
    CONTENTS,
    CURVE,
    LOCK_FILES,
    LOCKS,
    STORAGE,
    WEIGHTS,
    FileList,
    Parts,
    check_size,
    listed,
    read_contents,
    root_of,
)
from nbrl.tasks.bundle.personal import folders_in, impersonal, personal_in
from nbrl.tasks.bundle.signature import sign
from nbrl.tasks.bundle.verify import check_rest
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import ADAPTER, HF, RESULT
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.reward.judge.graded import recorded
from nbrl.tasks.runs.checkpoints import used
from nbrl.tasks.runs.decisive import digest
from nbrl.tasks.runs.epochs import Epoch, epochs_of
from nbrl.tasks.runs.history import Record, finished_iterations, read_record
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.results import NodeResult, evaluated_updates, results_of
from nbrl.tasks.runs.run import Run, known_run
from nbrl.tasks.runs.scope import Artifact

COMPUTES = ("torch", "transformers", "numpy", "pyarrow", "ray", "prefect")
CODE = Path(__file__).resolve().parents[2]


def publish_run(
    storage: Storage, name: str, out: Path, parts: Parts = "weights", key: Path | None = None, as_is: bool = False
) -> FileList:
    """Write the run to the folder `out`, which appears when it is complete; return its list.

    `parts` says whether the newest weights come along: the whole model, or what LoRA trained. With `key` the list is signed.
    Raises ConfigError if the run has finished no iteration, if `out` exists, if no audit would take it, or if what the run
    recorded names folders of this machine or its host, unless it is to be published `as_is`.
    """
    run = known_run(storage, name)
    count = finished_iterations(storage.list(run.layout.iterations), run.layout)
    records = [record for number in range(count) if (record := read_record(storage, run, number)) is not None]
    if not records:
        raise ConfigError(f"run {name!r} has finished no iteration; there is nothing to verify yet")
    if out.is_symlink() or out.exists():
        raise ConfigError(f"{out} exists; name a folder that does not, nothing is overwritten")
    above = out.parent.resolve()
    if published := next((each for each in (above, *above.parents) if (each / CONTENTS).exists()), None):
        raise ConfigError(f"{out} would lie in {published}, a published run that names all its files; name a folder beside it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
            folder = Path(beside) / "made"
            contents = _written(storage, run, records, folder, parts, as_is)
            if key is not None:
                sign(folder, key)
            for path in (folder, *folder.rglob("*")):  # a storage's files are their owner's alone, these are for everybody
                path.chmod(0o755 if path.is_dir() else 0o644)
            folder.rename(out)
    except (OSError, UnfitTableError) as error:
        raise ConfigError(f"{out} could not be made: {error}") from error
    return contents


def _written(storage: Storage, run: Run, records: list[Record], folder: Path, parts: Parts, as_is: bool) -> FileList:
    target = Storage(StorageSettings(root=str(folder / STORAGE)))
    results = [
        each for updates in evaluated_updates(storage, run) for each in results_of(storage, run.layout.evaluation(updates))
    ]
    _write_identity(storage, run, target)
    for where in _keys(storage, run, records, results):
        target.write_bytes(where, storage.read_bytes(where))
    for where in _grades(storage, run, records, results, target):
        if storage.exists(where):
            target.write_bytes(where, storage.read_bytes(where))
    newest, updates = records[-1], max(record.updates for record in records)
    if parts != "none" and newest.checkpoint:
        _write_weights(storage, run, updates, HF if parts == "weights" else ADAPTER, folder / WEIGHTS)
    for lock, name in LOCK_FILES.items():
        if (CODE / lock).is_file():
            (folder / LOCKS).mkdir(exist_ok=True)
            shutil.copyfile(CODE / lock, folder / name)
    if storage.exists(run.layout.curve):
        (folder / CURVE).write_bytes(storage.read_bytes(run.layout.curve))
    (folder / CARD).write_text(card(run, records, results, parts if newest.checkpoint else "none"))
    config = impersonal(stored_config(storage, run)).model_dump(mode="json")
    places = ((f"the setting {key}", value) for key, value in folders_in(config))
    if not as_is and (found := next(chain(places, personal_in(folder, _hosts(storage, run))), None)):
        raise ConfigError(
            f"{found[0]} holds {found[1]!r}, which is of this machine, and was recorded, so that it cannot be taken out; publish "
            "the run all the same with --as-is"
        )
    files = {str(path.relative_to(folder)): listed(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    first = next(iter(epochs_of(storage, run.layout)), None)
    contents = FileList(
        run=run.name,
        version=version("nbrl"),
        commit="" if first is None else first.commit,
        packages=dict(_packages()),
        updates=updates,
        files=files,
        root=root_of(files),
    )
    (folder / CONTENTS).write_text(contents.model_dump_json(indent=1))
    _check(folder, contents, run, records, results)
    return contents


def _check(folder: Path, contents: FileList, run: Run, records: list[Record], results: list[NodeResult]) -> None:
    """Raises ConfigError where an audit would refuse the folder for sizes, or for words that its card quotes."""
    try:
        check_size(str(folder), read_contents(folder), float("inf"))
        why = next(check_rest(folder, contents, run, records, results), "")
    except DamagedError as error:
        why = str(error).replace(str(folder), "it")
    if why:
        raise ConfigError(f"run {run.name!r} cannot be published: no audit would take it, because {why}")


def _write_identity(storage: Storage, run: Run, target: Storage) -> None:
    """Write who the run is, without what is personal: folders, servers and the name of the machine decide no result."""
    config = impersonal(stored_config(storage, run))
    fields = run.model_copy(update={"config": config.model_dump(mode="json"), "config_digest": digest(config)})
    target.write_json(run.layout.identity, fields.model_dump(mode="json"))
    for epoch in epochs_of(storage, run.layout):
        bare = Epoch(name=epoch.name, host="", process="", started=epoch.started, version=epoch.version, commit=epoch.commit)
        target.write_json(run.layout.epoch(epoch.name), bare.model_dump())


def _keys(storage: Storage, run: Run, records: Iterable[Record], results: Iterable[NodeResult]) -> Iterator[str]:
    """Yield the keys of what the records and evaluations are made of: of checkpoints the results of their updates alone."""
    layout, there = run.layout, set(storage.list(run.layout.folder))
    yield from sorted(key for key in there if key.startswith(f"{layout.data.folder}/"))
    for record in records:
        stage = layout.iteration(record.iteration)
        yield from filter(there.__contains__, (stage.record, stage.record_copy))
    artifacts = [artifact for record in records for artifact in record.artifacts] + [each.artifact for each in results]
    for artifact in artifacts:
        yield artifact.path if artifact.path.endswith(".parquet") else f"{artifact.path}/{RESULT}"
        yield from artifact.parts
    yield from sorted(key for key in there if key.startswith(f"{layout.evaluations}/") and "/nodes/" in key)


def _grades(
    storage: Storage, run: Run, records: Iterable[Record], results: Iterable[NodeResult], empty: Storage
) -> Iterator[str]:
    """Yield the keys of the grades of a model, without which rewards cannot be computed again: those that `empty` lacks."""
    settings = stored_config(storage, run).reward.judge
    if settings is None:
        return
    asked = [(round_.trajectories, _table(storage, round_.prompts)) for record in records for round_ in record.rounds]
    questions = stored.read(storage, run.layout.data, "held_out")
    for result in results:
        key = next(filter(is_trajectories, result.artifact.parts))
        asked.append((Artifact(path=key, digest=result.artifact.parts[key]), questions))
    for trajectories, prompts in asked:
        rows = with_references(_table(storage, trajectories), prompts)
        yield from recorded(rows, {}, settings, empty).gone


def _table(storage: Storage, artifact: Artifact) -> pa.Table:
    """Return the table of an artifact."""
    return storage.read_table(artifact.path, artifact.digest)


def _write_weights(storage: Storage, run: Run, updates: int, below: str, target: Path) -> None:
    with used(storage, run.name, updates) as path, tempfile.TemporaryDirectory() as scratch:
        source = storage.local_path(path) or storage.download_folder(path, Path(scratch) / "checkpoint", below)
        if not (source / below).is_dir():
            raise ConfigError(f"run {run.name!r} has no adapter: it was trained without update.lora; leave --with adapters out")
        shutil.copytree(source / below, target, symlinks=False)


def _hosts(storage: Storage, run: Run) -> set[str]:
    """Return the names of the machines that trained the run, and of this one."""
    return {socket.gethostname(), socket.getfqdn(), *(epoch.host for epoch in epochs_of(storage, run.layout))} - {"localhost", ""}


def _packages() -> Iterator[tuple[str, str]]:
    for name in COMPUTES:
        with suppress(PackageNotFoundError):
            yield name, version(name)
