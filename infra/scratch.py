"""Temporary folders, of which those that killed processes left are deleted with the next one that is made beside them.

Who uses a folder holds a lock of the kernel, which ends with its process. So nobody deletes what another uses, also where several
machines, or containers of one name, share a home.
"""

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = ".lock"


@contextmanager
def scratch(parent: Path, name: str) -> Iterator[Path]:
    """An empty folder below `parent`, deleted at the end. Raises OSError if it cannot be made."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"*{LOCK}"):
        _sweep(left)
    folder = parent / f"{name}-{uuid.uuid4().hex}"
    new, lock = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}{LOCK}")
    with new.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        new.rename(lock)  # only now others look whether it is held
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _sweep(lock: Path) -> None:
    with suppress(BlockingIOError, FileNotFoundError, PermissionError), lock.open("r+") as left:  # used, gone, another user's
        fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = lock.with_name(lock.name.removesuffix(LOCK))
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():  # else the next one tries again
            lock.unlink(missing_ok=True)
