"""Pins: marks on a run's checkpoints that somebody uses, so that training does not delete them."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pydantic import BaseModel, ConfigDict, ValidationError

from nbrl.infra.errors import DamagedError, MissingError, StorageError
from nbrl.infra.process.identity import identity, is_running
from nbrl.infra.storage import Storage
from nbrl.tasks.runs.run import Run

EXPIRES_S = 86400.0  # a process of another machine that died left its pin


class Pin(BaseModel):
    """A checkpoint, by its updates, and the process that uses it since `placed` (seconds since 1970)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    updates: int
    process: str
    placed: float

    @property
    def counts(self) -> bool:
        running = is_running(self.process)
        return time.time() - self.placed < EXPIRES_S if running is None else running


@contextmanager
def pin(storage: Storage, run: Run, updates: int) -> Iterator[None]:
    """Keep a checkpoint on the storage while the body runs."""
    key = f"{run.layout.pins}/{uuid.uuid4().hex}.json"
    with suppress(StorageError):  # a storage that may only be read
        storage.create_json(key, Pin(updates=updates, process=identity(), placed=time.time()).model_dump())
    try:
        yield
    finally:
        with suppress(StorageError):
            storage.delete(key)


def pinned(storage: Storage, run: Run) -> set[int]:
    """Updates of the checkpoints that somebody uses. Pins of processes that are known to have ended, and unreadable ones, go."""
    found = set()
    for key in storage.list(run.layout.pins):
        try:
            mark = Pin.model_validate(storage.read_json(key))
        except MissingError:  # taken away meanwhile
            continue
        except (DamagedError, ValidationError):  # nobody can tell what it keeps
            storage.delete(key)
            continue
        if mark.counts:
            found.add(mark.updates)
        else:
            storage.delete(key)
    return found
