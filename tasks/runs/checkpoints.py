"""Finds the weights a run has made."""

from pathlib import Path

from nbrl.infra.manifest import check_folder
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.layout import HF, RUNS, name_of
from nbrl.tasks.runs.history import made_updates
from nbrl.tasks.runs.run import find_run


def checkpoint(storage: Storage, name: str, updates: int | None) -> str:
    """Key of a run's checkpoint after `updates` updates, the newest finished one by default."""
    run = find_run(storage, name)
    if run is None:
        runs = sorted({name_of(key) for key in storage.list(RUNS)})
        hint = did_you_mean(name, runs, f"`nbrl train RECIPE --run {name}` makes one")
        raise ConfigError(f"there is no run {name!r} in {storage.settings.root}; {hint}")
    newest = made_updates(storage, run)
    if not newest:
        raise ConfigError(f"run {name!r} in {storage.settings.root} has no finished checkpoint yet")
    number = newest if updates is None else updates
    if not 1 <= number <= newest:
        raise ConfigError(f"run {name!r} has checkpoints 1 to {newest}, not {number}")
    return run.layout.checkpoint(number)


def checkpoint_folder(storage: Storage, home: Path, name: str, updates: int | None) -> Path:
    """Local Hugging Face folder of such a checkpoint; fetched below `home` when the storage is remote."""
    path = checkpoint(storage, name, updates)
    local = storage.local_path(path)
    if local is None:
        local = storage.download_folder(path, home / "downloads" / path, HF)
    else:
        check_folder(local, f"{HF}/")
    return local / HF
