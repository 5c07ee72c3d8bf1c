"""Files that a user names for what is shown."""

import os
from pathlib import Path

from nbrl.agent.notebook.write import notebook, written
from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.errors import ConfigError


def writable(path: Path) -> Path:
    """Return `path` if a file can be written there; to be called before the work starts. Raises ConfigError."""
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file")
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder} for {path.name}; make it or name another")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{path} may not be written; name a file elsewhere")
    return path


def save(path: Path, trajectory: Trajectory, rewards: dict[str, object] | None = None) -> None:
    """Write the trajectory as a notebook, replacing a file of this name. Raises ConfigError."""
    put(path, written(notebook(trajectory, rewards)))


def put(path: Path, data: bytes) -> None:
    """Write the file, replacing one of this name. Raises ConfigError."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path} could not be written: {error.strerror}") from error
