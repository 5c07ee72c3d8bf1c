"""Opens files that others may have put there: a pipe or a device, which would never end, is refused."""

import os
import stat
from io import BufferedReader
from pathlib import Path

TEXT_BYTES = 1 << 27  # of a file of JSON or of settings


class NotRegularError(OSError):
    """There is a link, a pipe, a device or a folder where a file or a folder of our own should be."""


def opened(path: Path, follow: bool = True) -> BufferedReader:
    """The file, to read. Raises NotRegularError where it is none, and OSError for a link that is not to be followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularError(f"{path} is no regular file; take it away, or put the file itself there")
    return os.fdopen(descriptor, "rb")


def content(path: Path, most: int = TEXT_BYTES) -> bytes:
    """What is in a file, as one of JSON or of settings. Raises NotRegularError where it is no file, or has more bytes."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise NotRegularError(f"{path} has more than {most >> 20} MB, which no file of its kind has")
        return file.read(most)


def check_no_link(path: Path, root: Path) -> None:
    """Raises NotRegularError if the path, or a folder between it and `root`, is a link: it would lead out of there."""
    for each in (path, *path.parents):
        if each == root or root not in each.parents:
            return
        if each.is_symlink():
            raise NotRegularError(f"{each} is a link, and none is followed there; put what it names in its place")
