"""The output folder of a preparation: it holds one preparation, at which one process works."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.prepare.identity import Identity, differences

PREPARATION, LOCK = "preparation.json", ".lock"
STAGES, REPLIES = "stages", "replies.sqlite"
SHOWN = 3  # differences named at once


def check_folder(folder: Path, wanted: Identity) -> None:
    """Raises ConfigError unless the folder is empty, does not exist yet, or holds this very preparation."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file; name a folder")
    storage = Storage(StorageSettings(root=str(folder)))
    if storage.exists(PREPARATION):
        if differs := differences(storage.read_json(PREPARATION), wanted):
            raise ConfigError(
                f"{folder} holds another preparation: {'; '.join(differs[:SHOWN])}. Choose another --out; `replies` can name "
                f"{folder / REPLIES}, so that no model is asked twice"
            )
    elif folder.is_dir() and (others := [each.name for each in folder.iterdir() if not each.name.startswith(".")]):
        raise ConfigError(f"{folder} holds other files, such as {sorted(others)[0]!r}; choose an empty folder or a new one")


@contextmanager
def opened(folder: Path, wanted: Identity) -> Iterator[Storage]:
    """The folder as a storage, for this process alone. Raises ConfigError as `check_folder` does, or if it is in use."""
    check_folder(folder, wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written to: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process prepares data in {folder}; wait for it, or choose another --out") from error
        storage = Storage(StorageSettings(root=str(folder)))
        storage.create_json(PREPARATION, wanted)
        yield storage
