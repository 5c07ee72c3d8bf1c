"""Finds the weights a run has made."""

from pathlib import Path

from infra.storage import Storage
from tasks.errors import ConfigError
from tasks.run import find_run


def checkpoint_folder(storage: Storage, home: Path, name: str, updates: int | None) -> Path:
    """Local Hugging Face folder of a run's checkpoint after `updates` updates, the newest by default."""
    run = find_run(storage, name)
    if run is None:
        raise ConfigError(f"there is no run {name!r} in {storage.settings.root}; `nbrl train RECIPE --run {name}` makes one")
    newest = run.updates(storage)
    wanted = newest if updates is None else updates
    if not 1 <= wanted <= newest:
        raise ConfigError(f"run {name!r} has checkpoints 1 to {newest}, not {wanted}")
    path = run.scope(wanted).checkpoint(wanted)
    local = storage.local_path(path)
    if local is None:
        local = storage.download_folder(path, home / "downloads" / path)
    return local / "hf"
