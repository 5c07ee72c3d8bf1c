"""Paths as people write them."""

import os
from pathlib import Path

from nbrl.infra.errors import StorageError

PATH_BYTES, NAME_BYTES = 4095, 255


def expanded(path: str | Path) -> Path:
    """The path with `~` and `~user` replaced. Raises StorageError if there is no such user, or the path is too long to be one."""
    if len(os.fsencode(path)) > PATH_BYTES or any(len(os.fsencode(part)) > NAME_BYTES for part in Path(path).parts):
        raise StorageError(
            f"{str(path)[:60]!r} and so on is too long for a path; give one with names of at most {NAME_BYTES} bytes"
        )
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise StorageError(f"{path} names the home of a user who is not known here; write the path out") from error
