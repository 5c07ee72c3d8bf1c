"""The files that an agent made, out of its sandbox into a folder of the user's."""

from collections.abc import Mapping
from pathlib import Path

from nbrl.sandbox.workspace import Collected
from nbrl.tasks.errors import ConfigError

SHOWN = 3  # files left out that are named


def check_folder(folder: Path) -> None:
    """Raises ConfigError unless nothing can be overwritten in `folder`, and no link in it can lead elsewhere."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"--files-to {folder} is no folder; name one that is new or empty")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"--files-to {folder} has files in it; name a folder that is new or empty")
    if not folder.absolute().parent.is_dir():
        raise ConfigError(f"--files-to: there is no folder {folder.absolute().parent}; make it first")


def write_files(folder: Path, collected: Collected, attached: Mapping[str, bytes]) -> str:
    """Write what was collected into an empty folder, but for attached files that were left as they were; say what was written.

    Names are relative and without `..`, and every folder on the way is made here. Raises ConfigError when the disk refuses.
    """
    made = [file for file in collected.files if attached.get(file.path) != file.data]
    try:
        folder.mkdir(exist_ok=True)
        for file in made:
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
    except OSError as error:
        raise ConfigError(f"the agent's files cannot be written to {folder}: {error.strerror}") from error
    left_out = "".join(f"; left out: {path} ({reason})" for path, reason in collected.left_out[:SHOWN])
    return f"files of the agent written to {folder}: {len(made)}{left_out}"
