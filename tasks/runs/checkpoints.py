"""Finds the weights a run has made."""

from pathlib import Path

from nbrl.infra.manifest import check_folder
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout import HF
from nbrl.tasks.runs.history import made_updates
from nbrl.tasks.runs.run import known_run


def checkpoint(storage: Storage, name: str, updates: int | None) -> str:
    """Key of a run's checkpoint after `updates` updates, the newest finished one by default."""
    run = known_run(storage, name)
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
