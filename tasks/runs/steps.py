"""Durable steps: what a step made of its inputs is recorded once, after all that it names, and is found instead of made again.

Nodes keep their records below a run, which one process at a time holds by a lease. A preparation of data and a warm start keep
theirs in a work folder, which one process at a time locks.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field

from nbrl.infra.blobs import TEMPORARY
from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.decisive import leaf_differences
from nbrl.tasks.runs.kept import read_kept

IDENTITY, LOCK = "identity.json", ".lock"
SHOWN = 3  # differences named at once
RecordT = TypeVar("RecordT", bound=BaseModel)


class StepStore(Generic[RecordT]):
    """The records of finished steps, by key.

    `verify` raises MissingError or DamagedError where what a record names is not what the step made.
    """

    def __init__(
        self, storage: Storage, model: type[RecordT], verify: Callable[[RecordT], None], say: Callable[[str], None]
    ) -> None:
        self._storage, self._model, self._verify, self._say = storage, model, verify, say

    def find(self, key: str, title: str) -> RecordT | None:
        """Return the record of a finished step. One that is damaged, or whose objects are, is reported by `title` and deleted."""
        try:
            return self._read(key)
        except (MissingError, DamagedError) as error:
            what = str(error).partition(";")[0]  # without the advice, which this makes needless
            self._say(f"nbrl: {title} is done again, for what it made is lost: {what}")
            self._storage.delete(key)
            return None

    def keep(self, key: str, record: RecordT) -> RecordT:
        """Record a finished step; returns the record that counts: another process's, if that was first and is whole."""
        fields = record.model_dump(mode="json")
        if self._storage.create_json(key, fields):
            return record
        with suppress(MissingError, DamagedError):
            if (first := self._read(key)) is not None:
                return first
        self._storage.write_json(key, fields)
        return record

    def _read(self, key: str) -> RecordT | None:
        try:
            record = read_kept(self._storage, key, self._model)
        except MissingError:
            return None
        self._verify(record)
        return record


class StepRecord(ClosedModel):
    """A step of a work folder: the SHA-256 of the objects that it wrote, by key. A step that found more has a model below it."""

    objects: dict[str, str] = Field(default_factory=dict)


FolderRecordT = TypeVar("FolderRecordT", bound=StepRecord)


def folder_steps(storage: Storage, model: type[FolderRecordT], say: Callable[[str], None]) -> StepStore[FolderRecordT]:
    """Return the steps of a work folder whose records are of this model."""

    def verify(record: FolderRecordT) -> None:
        for key, digest in record.objects.items():
            storage.read_bytes(key, digest)

    return StepStore(storage, model, verify, say)


def inputs_digest(inputs: Any) -> str:
    """Return the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def check_work_folder(folder: Path, identity: Mapping[str, Any], what: str) -> None:
    """Raises ConfigError unless the folder does not exist, is empty, or holds this very work: `what`, of this identity."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder")
    storage = Storage(StorageSettings(root=str(folder)))
    if storage.exists(IDENTITY):
        if differences := leaf_differences(storage.read_json(IDENTITY), identity, what):
            raise ConfigError(
                f"{folder} holds another {what}: {'; '.join(differences[:SHOWN])}. Use the same settings and files to go on with "
                "it, delete it to begin anew, or name another folder"
            )
        return
    others = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    # What a process leaves that was killed before it had written the identity: its lock, and a temporary file.
    if others := [name for name in others if name != LOCK and not name.startswith(TEMPORARY)]:
        raise ConfigError(f"{folder} holds other files, such as {others[0]!r}; take them away, or name another folder")


@contextmanager
def work_folder(folder: Path, identity: Mapping[str, Any], what: str) -> Iterator[Storage]:
    """Yield the folder as a storage, for this process alone.

    Raises ConfigError as `check_work_folder` does, or if the folder is in use or cannot be written to.
    """
    check_work_folder(folder, identity, what)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "w")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written to: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process works in {folder}; wait for it, or name another folder") from error
        storage = Storage(StorageSettings(root=str(folder)))
        if not storage.create_json(IDENTITY, dict(identity)):
            check_work_folder(folder, identity, what)  # another process may have begun since
        for left in folder.glob(f"{TEMPORARY}*"):  # by a process that was killed: no other one writes here now
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink(missing_ok=True)
        yield storage
