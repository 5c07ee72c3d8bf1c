"""Folders of a storage on the disk of this machine: each is copied once, whoever on the machine needs it.

A copy is named by the digest of its manifest, so that one with that name holds that content; it is compared with the manifest
when a process uses it for the first time. Who uses a copy holds a lease, a lock of the kernel that ends with its process; what
nobody leases is deleted, the longest unused first, when a new copy makes the cache larger than its limit.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from pydantic import BaseModel, ConfigDict, Field

from nbrl.infra.errors import DamagedError, StorageError
from nbrl.infra.manifest import MANIFEST, check_folder
from nbrl.infra.storage import Storage, sha256

LOCK = ".lock"
WHOLE = "whole"
SCRATCH = "scratch"


class NodeSettings(BaseModel):
    """What every machine of a cluster keeps for itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cache: str = Field(
        "~/.cache/nbrl/folders",
        min_length=1,
        description="folder on each machine for copies of models and checkpoints, where the storage is a cloud",
        json_schema_extra={"decides": False},
    )
    cache_gb: float = Field(
        100,
        gt=0,
        description="GB that the copies may take; what is in use stays, even beyond it",
        json_schema_extra={"decides": False},
    )


class Lease:
    """The right to read a copy at `path` until it is released, or this process ends."""

    def __init__(self, path: Path, lock: IO[str] | None = None) -> None:
        self.path, self._lock = path, lock

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class NodeCache:
    """The cache of this machine. Every method raises StorageError if storage or disk fail."""

    def __init__(self, settings: NodeSettings) -> None:
        self._root, self._limit = Path(settings.cache).expanduser().absolute(), settings.cache_gb * 1e9
        self._seen: set[Path] = set()

    def lease(self, storage: Storage, key: str, part: str = "") -> Lease:
        """The folder `key` of a storage, or only its subfolder `part`, as a folder of this machine.

        Where the storage is a folder itself, that is the place. Raises MissingError and DamagedError too.
        """
        if (local := storage.local_path(key)) is not None:
            return Lease(local)
        digest = sha256(storage.read_bytes(f"{key}/{MANIFEST}"))
        place = self._place(digest, part)
        with self._on_disk(f"keep a copy of {storage.uri(key)}"):
            while True:
                lock = self._locked(place, fcntl.LOCK_EX)
                if not self._whole(place, digest, part):
                    storage.download_folder(key, place, part)
                    self._seen.add(place)
                os.utime(place)
                self._make_room(place)
                fcntl.flock(lock, fcntl.LOCK_SH)
                if _named(lock) and place.exists():  # the kernel may give the lock to another in between, who deletes the copy
                    return Lease(place, lock)
                lock.close()

    def adopt(self, made: Path, part: str = "") -> None:
        """Make a complete folder that lies in `scratch` the copy of what was just stored with its manifest, if there is none yet.

        With a `part`, only that subfolder.
        """
        place = self._place(sha256((made / MANIFEST).read_bytes()), part)
        with self._on_disk("keep a copy"), self._locked(place, fcntl.LOCK_EX):
            if place.exists():
                return
            partial = place.with_name(f".{place.name}")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for name in [part, MANIFEST] if part else os.listdir(made):
                (made / name).rename(partial / name)
            partial.rename(place)
            self._seen.add(place)

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """An empty folder on the disk of the cache, deleted at the end; what killed processes left is deleted first."""
        folder = self._root / SCRATCH / f"{os.getpid()}-{name}"
        with self._on_disk("make room for a checkpoint"):
            for left in folder.parent.glob("*-*"):
                if not Path("/proc", left.name.partition("-")[0]).exists():
                    shutil.rmtree(left, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _place(self, digest: str, part: str) -> Path:
        return self._root / f"{digest}-{part or WHOLE}"

    def _whole(self, place: Path, digest: str, part: str) -> bool:
        """Whether the copy is there, and what its manifest says; one that is damaged is deleted."""
        if place not in self._seen and place.exists():
            try:
                if sha256((place / MANIFEST).read_bytes()) != digest:
                    raise DamagedError(f"{place} has another manifest")
                check_folder(place, f"{part}/" if part else "")
                self._seen.add(place)
            except (DamagedError, FileNotFoundError):
                shutil.rmtree(place, ignore_errors=True)
        return place.exists()

    def _make_room(self, new: Path) -> None:
        """Delete what is unused, the oldest first, until the rest is within the limit."""
        copies = sorted((path for path in self._root.glob("*-*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
        sizes = {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in copies}
        total = sum(sizes.values())
        for path in copies:
            if total <= self._limit:
                return
            if path == new:
                continue
            try:
                lock = self._locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # in use
                continue
            with lock:
                shutil.rmtree(path, ignore_errors=True)
                Path(lock.name).unlink(missing_ok=True)
                self._seen.discard(path)
                total -= sizes[path]

    def _locked(self, place: Path, how: int) -> IO[str]:
        """The lock of a copy, as an open file that holds it. Raises BlockingIOError where it was not to be waited for."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            lock = place.with_name(f"{place.name}{LOCK}").open("w")
            try:
                fcntl.flock(lock, how)
                if _named(lock):
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()  # whoever held it deleted it with its copy

    @contextmanager
    def _on_disk(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot {what} below {self._root}: {error}; set nodes.cache to a folder with room") from error


def _named(lock: IO[str]) -> bool:
    """Whether the lock's file still has its name: who deletes a copy deletes its lock."""
    try:
        return os.fstat(lock.fileno()).st_ino == os.stat(lock.name).st_ino
    except FileNotFoundError:
        return False
