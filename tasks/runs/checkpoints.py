"""Finds the weights a run has made."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.infra.errors import DamagedError
from nbrl.infra.manifest import MANIFEST, check_folder
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import HF, updates_of
from nbrl.tasks.layout.runs import NAME, RUNS
from nbrl.tasks.runs.history import made_in, newest_record, read_record
from nbrl.tasks.runs.pins import pin
from nbrl.tasks.runs.retention import complete
from nbrl.tasks.runs.run import find_run, known_run, named, unknown


def checkpoint(storage: Storage, name: str, updates: int | None) -> str:
    """Return the key of a run's checkpoint after `updates` updates, the newest finished one by default.

    Raises ConfigError if there is none, or its weights are gone.
    """
    run = known_run(storage, name)
    newest = newest_record(storage, run)
    if newest is None or not newest.checkpoint:
        raise ConfigError(f"run {name!r} in {storage.settings.root} has no finished checkpoint yet")
    number = newest.updates if updates is None else updates
    if not 1 <= number <= newest.updates:
        raise ConfigError(f"run {name!r} has checkpoints 1 to {newest.updates}, not {number}")
    record = newest if number == newest.updates else read_record(storage, run, made_in(storage, run, number))
    key, folders = record.checkpoint if record else "", complete(storage, run)
    if key not in folders:
        left = ", ".join(map(str, sorted({*map(updates_of, folders)} - {number}))) or "none"
        raise ConfigError(
            f"checkpoint {number} of run {name!r} is gone (deleted by its setting `checkpoints`, or by hand); there are: "
            f"{left}; name one of them, or bring it back from a copy"
        )
    return key


@contextmanager
def used(storage: Storage, name: str, updates: int | None) -> Iterator[str]:
    """Yield the same key as `checkpoint`. While the body runs, training does not delete it."""
    key = checkpoint(storage, name, updates)
    with pin(storage, known_run(storage, name), updates_of(key)):
        yield key


@contextmanager
def checkpoint_folder(storage: Storage, home: Path, name: str, updates: int | None) -> Iterator[Path]:
    """Yield the local Hugging Face folder of such a checkpoint; fetched below `home` when the storage is remote."""
    with used(storage, name, updates) as path:
        local = storage.local_path(path)
        if local is None:
            local = storage.download_folder(path, home / "downloads" / path, HF)
        else:
            if not (local / MANIFEST).is_file():
                raise DamagedError(
                    f"{local} has lost its {MANIFEST}: its weights cannot be checked; bring the folder back from "
                    "a copy, or name another checkpoint"
                )
            check_folder(local, f"{HF}/")
        yield local / HF


def run_of(storage: Storage, model: str) -> tuple[str, int | None] | None:
    """Return the run and number of updates that `RUN` or `RUN@N` names; None if there is no such run.

    Raises ConfigError where N is no number.
    """
    name = model.partition("@")[0]
    if not NAME.fullmatch(name) or find_run(storage, name) is None:
        return None
    return named(model)


@contextmanager
def folder_of(storage: Storage, home: Path, model: str) -> Iterator[Path]:
    """Yield the local Hugging Face folder of `RUN`, `RUN@N` or a folder's path. Raises ConfigError."""
    if (named := run_of(storage, model)) is not None:
        with checkpoint_folder(storage, home, *named) as folder:
            yield folder
    elif Path(model).is_dir():
        yield Path(model)
    elif NAME.fullmatch(name := model.partition("@")[0]):
        raise ConfigError(f"there is no folder {model!r}, and {unknown(storage, name, RUNS)}")
    else:
        raise ConfigError(f"there is no folder {model!r}; correct the path, or give the name of a run")
