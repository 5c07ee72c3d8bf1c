"""Whole objects by key, in a local folder.

An object is either absent or complete, after the death of any process and after a power cut: it is written to a temporary file,
flushed to the disk, renamed or linked to its name, and the folder that holds the name is flushed too.
"""

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

from nbrl.infra.paths import check_no_link, content, opened

TEMPORARY = ".writing-"
TEXTS = (".json", ".yaml")
LARGEST = 4 << 30  # bytes of what is read at once


class Blobs(Protocol):
    """A place for objects. Every method raises what its library raises; `exists` is False only where there is no such object."""

    def read(self, key: str) -> bytes: ...
    def write(self, key: str, data: bytes) -> None: ...
    def create(self, key: str, data: bytes) -> bool:
        """Write `data` unless the object exists; returns whether it was written. Of several writers exactly one gets True."""
        ...

    def put(self, key: str, source: Path) -> None: ...
    def get(self, key: str, target: Path) -> None: ...
    def exists(self, key: str) -> bool: ...
    def list(self, prefix: str) -> list[str]: ...
    def delete(self, prefix: str) -> None: ...
    def delete_keys(self, keys: Sequence[str]) -> None: ...
    def uri(self, key: str) -> str: ...


class LocalBlobs:
    """A folder, which may be a link itself; no link below it is followed, and no pipe or device is read."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def path(self, key: str) -> Path:
        return self.root / key

    def inside(self, key: str) -> Path:
        """Return the path, on which there is no link. Raises NotRegularError."""
        path = self.path(key)
        check_no_link(path, self.root)
        return path

    @contextlib.contextmanager
    def _replacing(self, key: str, place: Callable[[str, Path], None] = os.replace) -> Iterator[IO[bytes]]:
        """Yield a file to write; once it is on the disk, `place` moves it to its name."""
        target = self.inside(key)
        _make_folders(target.parent)
        descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            place(temporary, target)
            flush_folder(target.parent)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def read(self, key: str) -> bytes:
        if key.endswith(TEXTS):
            return content(self.inside(key))
        return content(self.inside(key), LARGEST)

    def write(self, key: str, data: bytes) -> None:
        with self._replacing(key) as file:
            file.write(data)

    def create(self, key: str, data: bytes) -> bool:
        try:
            with self._replacing(key, os.link) as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def put(self, key: str, source: Path) -> None:
        with self._replacing(key) as target, source.open("rb") as file:
            shutil.copyfileobj(file, target, 1 << 20)

    def get(self, key: str, target: Path) -> None:
        with opened(self.inside(key)) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)

    def exists(self, key: str) -> bool:
        try:
            return stat.S_ISREG(self.inside(key).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def list(self, prefix: str) -> list[str]:
        keys = []
        for folder, below, names in os.walk(self.inside(prefix), onerror=_unless_missing):
            below[:] = [name for name in below if not name.startswith(TEMPORARY)]  # of a deletion that was cut off
            relative = Path(folder).relative_to(self.root)
            keys += [(relative / name).as_posix() for name in names if not name.startswith(TEMPORARY)]
        return sorted(keys)

    def delete(self, prefix: str) -> None:
        path = self.path(prefix)
        check_no_link(path.parent, self.root)
        if path.is_dir() and not path.is_symlink():
            # Renamed first: a reader sees all of a folder or nothing of it.
            grave = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent)) / path.name
            with contextlib.suppress(FileNotFoundError):  # another process was first
                path.rename(grave)
            flush_folder(path.parent)
            shutil.rmtree(grave.parent)
        elif path.is_symlink() or path.exists():
            path.unlink(missing_ok=True)
            flush_folder(path.parent)

    def delete_unfinished(self, prefix: str, older_than_s: float) -> None:
        """Delete temporary files and folders that killed processes left below `prefix`, by the time of their last change."""
        latest = time.time() - older_than_s
        for folder, below, names in os.walk(self.inside(prefix)):
            for name in [name for name in (*below, *names) if name.startswith(TEMPORARY)]:
                path = Path(folder, name)
                with contextlib.suppress(OSError):  # another process may delete it too; no process needs it
                    if path.lstat().st_mtime < latest:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def delete_keys(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_no_link(self.path(key).parent, self.root)
            self.path(key).unlink(missing_ok=True)
        for folder in {self.path(key).parent for key in keys}:
            with contextlib.suppress(FileNotFoundError):
                flush_folder(folder)

    def uri(self, key: str) -> str:
        return str(self.path(key))


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(folder: Path) -> None:
    """Create `folder` and its parents, and flush each new name to disk."""
    if not folder.is_dir():
        _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
