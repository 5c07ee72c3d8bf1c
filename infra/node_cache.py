"""Folders of a storage on the disk of this machine: each is copied once for all processes of the machine.

A copy is named by the digest of its part of the manifest, so that one with that name holds that content; it is compared with the
manifest when a process uses it for the first time. A process that uses a copy holds a lease, a lock of the kernel that ends with
it; a copy without a lease is deleted, the longest unused first, when a new copy makes the cache larger than its limit.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from pydantic import Field

from nbrl.infra.closed import FREE, ClosedModel
from nbrl.infra.errors import DamagedError, StorageError
from nbrl.infra.manifest import MANIFEST, check_folder, part_digest, read_manifest
from nbrl.infra.paths import expanded, scratch
from nbrl.infra.storage import Storage, sha256

LOCK = ".lock"
WHOLE = "whole"
SCRATCH = "scratch"
BUSY_S, POLL_S = 600.0, 0.2  # to wait for others that fetch or adopt the same copy


class NodeSettings(ClosedModel):
    """Settings of the copies that every machine of a cluster keeps."""

    cache: str = Field(
        "~/.cache/nbrl/folders",
        min_length=1,
        description="folder on each machine for copies of models and checkpoints, where the storage is a cloud",
        json_schema_extra=FREE,
    )
    cache_gb: float = Field(
        100,
        gt=0,
        description="GB that the copies may take; what is in use stays, even beyond it",
        json_schema_extra=FREE,
    )


class CopyLease:
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
        self._root, self._limit = expanded(settings.cache).absolute(), settings.cache_gb * 1e9
        self._seen: set[Path] = set()

    def lease(self, storage: Storage, key: str, part: str = "") -> CopyLease:
        """Return the folder `key` of a storage, or only its subfolder `part`, as a folder of this machine.

        Where the storage is a folder itself, that folder is returned. Raises MissingError and DamagedError too.
        """
        if (local := storage.local_path(key)) is not None:
            return CopyLease(local)
        digest = _identity(storage.read_bytes(f"{key}/{MANIFEST}"), storage.uri(key), part)
        place = self._place(digest, part)
        with self._on_disk(f"keep a copy of {storage.uri(key)}"):
            deadline = time.monotonic() + BUSY_S
            while True:
                lock = self._locked(place, fcntl.LOCK_SH)  # waits for the process that fetches it
                if self._whole(place, digest, part):
                    os.utime(place)
                    return CopyLease(place, lock)
                lock.close()
                with suppress(BlockingIOError):  # others look for it too, and one of them fetches it
                    self._fetch(storage, key, place, digest, part)
                    continue
                if time.monotonic() > deadline:
                    raise StorageError(f"{place} is damaged and in use; end what uses it, and delete it")
                time.sleep(POLL_S)

    def adopt(self, made: Path, part: str = "") -> None:
        """Make a complete folder that lies in `scratch` the copy of what was just stored with its manifest, if there is none yet.

        With a `part`, only that subfolder.
        """
        place = self._place(_identity_in(made, part), part)
        with self._on_disk("keep a copy"), suppress(BlockingIOError), self._exclusively(place):
            if place.exists():
                return
            partial = place.with_name(f".{place.name}-made")
            partial.mkdir()
            for name in [part, MANIFEST] if part else os.listdir(made):
                (made / name).rename(partial / name)
            partial.rename(place)
            self._seen.add(place)
            self._make_room(place)

    def _fetch(self, storage: Storage, key: str, place: Path, digest: str, part: str) -> None:
        """Fetch the copy, unless another process did meanwhile. Raises DamagedError if it is not the one that was requested."""
        with self._exclusively(place):
            if self._whole(place, digest, part):
                return
            storage.download_folder(key, place, part)
            if _identity_in(place, part) != digest:
                shutil.rmtree(place, ignore_errors=True)
                raise DamagedError(f"{storage.uri(key)} was replaced while it was fetched; use the same command again")
            self._seen.add(place)
            self._make_room(place)

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """Yield an empty folder on the disk of the cache, deleted at the end; what killed processes left is deleted first."""
        with ExitStack() as stack:
            with self._on_disk("make room for a checkpoint"):
                folder = stack.enter_context(scratch(self._root / SCRATCH, name))
            yield folder

    def _place(self, digest: str, part: str) -> Path:
        return self._root / f"{digest}-{part or WHOLE}"

    def _whole(self, place: Path, digest: str, part: str) -> bool:
        """Return whether the copy is there, and what its manifest says."""
        if place not in self._seen and place.exists():
            try:
                if _identity_in(place, part) != digest:
                    return False
                check_folder(place, f"{part}/" if part else "")
                self._seen.add(place)
            except (DamagedError, FileNotFoundError):
                return False
        return place.exists()

    def _make_room(self, new: Path) -> None:
        """Delete what is unused, the oldest first, until the rest is within the limit."""
        sizes, ages = dict[Path, int](), dict[Path, float]()
        for path in self._root.glob("[!.]*-*"):
            with suppress(FileNotFoundError, NotADirectoryError):  # deleted meanwhile, or a lock
                sizes[path] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0
                ages[path] = path.stat().st_mtime
        total = sum(sizes.values())
        for path in sorted(ages, key=lambda path: ages[path]):
            if total <= self._limit:
                return
            if path == new or path.suffix == LOCK:
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

    @contextmanager
    def _exclusively(self, place: Path) -> Iterator[None]:
        """Lock the copy: no other process reads or changes it. What a killed process left of fetching it is deleted.

        Raises BlockingIOError if it is in use.
        """
        lock = self._locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with lock:
            for left in place.parent.glob(f".{place.name}-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield

    def _locked(self, place: Path, how: int) -> IO[str]:
        """Return the lock of a copy, as an open file. Raises BlockingIOError if it is taken and `how` does not wait."""
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
            lock.close()  # its holder deleted it with its copy

    @contextmanager
    def _on_disk(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot {what} below {self._root}: {error}; set nodes.cache to a folder with room") from error


def _identity(manifest: bytes, where: str, part: str) -> str:
    """Return the name of a copy of a folder with this manifest. Other parts, such as states, may come and go."""
    return part_digest(read_manifest(manifest, where), f"{part}/") if part else sha256(manifest)


def _identity_in(folder: Path, part: str) -> str:
    return _identity((folder / MANIFEST).read_bytes(), str(folder), part)


def _named(lock: IO[str]) -> bool:
    """Return whether the lock's file still has its name: its lock is deleted with a copy."""
    try:
        return os.fstat(lock.fileno()).st_ino == os.stat(lock.name).st_ino
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class PlacedFolder:
    """At `place`: a path that every machine has, or the key of a folder of the `storage`."""

    place: str
    storage: Storage | None = None

    def lease(self, cache: NodeCache, part: str = "") -> CopyLease:
        """Return the folder on this machine, or of it only the subfolder `part`. Raises StorageError if it cannot be had."""
        return CopyLease(Path(self.place)) if self.storage is None else cache.lease(self.storage, self.place, part)

    def __str__(self) -> str:
        return self.place if self.storage is None else self.storage.uri(self.place)
