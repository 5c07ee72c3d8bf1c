"""Paths and files of this machine: paths as people write them, temporary folders, and files that may be hostile.

Of temporary folders those that killed processes left are deleted with the next one beside them. A process that uses one holds a
lock of the kernel, which ends with it, so that no other deletes it, also where several machines share a home.
"""

import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from nbrl.infra.errors import StorageError

PATH_BYTES, NAME_BYTES = 4095, 255
LOCK = ".lock"
TEXT_BYTES = 1 << 27  # of a file of JSON or of settings
SMALL = 1 << 16  # bytes by which a file may grow while it is read


def expanded(path: str | Path) -> Path:
    """Return the path with `~` and `~user` replaced. Raises StorageError for an unknown user, or too long a path."""
    if len(os.fsencode(path)) > PATH_BYTES or any(len(os.fsencode(part)) > NAME_BYTES for part in Path(path).parts):
        raise StorageError(
            f"{str(path)[:60]!r} and so on is too long for a path; give one with names of at most {NAME_BYTES} bytes"
        )
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise StorageError(f"{path} names the home of a user who is not known here; write the path out") from error


@contextmanager
def scratch(parent: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder below `parent`, deleted at the end. Raises OSError if it cannot be made."""
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


class NotRegularError(OSError):
    """There is a link, a pipe, a device or a folder where a file or a folder of our own should be."""


def opened(path: Path, follow: bool = True) -> BufferedReader:
    """Return the file, to read. Raises NotRegularError where it is none, and OSError for a link that is not to be followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError(f"{path} is no regular file; take it away, or put the file itself there")
    return os.fdopen(descriptor, "rb")


def content(path: Path, most: int = TEXT_BYTES) -> bytes:
    """Return what is in a file, as one of JSON or of settings. Raises NotRegularError where it is no file, or has more bytes."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise NotRegularError(f"{path} has more than {most >> 20} MB, which no file of its kind has")
        return file.read(min(most, size + SMALL))  # memory for as much is taken at once


def check_no_link(path: Path, root: Path) -> None:
    """Raises NotRegularError if the path, or a folder between it and `root`, is a link: it would lead elsewhere."""
    for each in (path, *path.parents):
        if each == root or root not in each.parents:
            return
        if each.is_symlink():
            raise NotRegularError(f"{each} is a link, and none is followed there; put what it names in its place")
