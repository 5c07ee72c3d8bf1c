"""Pins: marks on a run's checkpoints in use, so that training does not delete them."""

import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pydantic import ValidationError, model_validator

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, MissingError, StorageError
from nbrl.infra.manifest import MANIFEST, read_manifest
from nbrl.infra.process.identity import identity, is_running
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.layout.runs import CHAMPIONS, RunLayout, champion_of, lies_below
from nbrl.tasks.runs.run import Run

EXPIRES_S = 86400.0  # a process of another machine that died left its pin


class Pin(ClosedModel):
    """A checkpoint, by its updates, and the process that uses it since `placed` (seconds since 1970)."""

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
    """Return the updates of the checkpoints in use. Pins of processes that are known to have ended, and unreadable ones, go."""
    updates = set()
    for key in storage.list(run.layout.pins):
        try:
            mark = Pin.model_validate(storage.read_json(key))
        except MissingError:  # deleted meanwhile
            continue
        except (DamagedError, ValidationError):  # what it keeps is unknown
            storage.delete(key)
            continue
        if mark.counts:
            updates.add(mark.updates)
        else:
            storage.delete(key)
    return updates


class Champion(ClosedModel):
    """The checkpoint after `updates` updates of a run: its folder, and the digest of its weights.

    `promoted` is in seconds since 1970. `before` is the champion in whose place it came, without the one before that.
    """

    recipe: str
    run: str
    run_id: str
    updates: int
    checkpoint: str
    weights: str
    promoted: float
    user: str = ""
    before: "Champion | None" = None

    @model_validator(mode="after")
    def _of_the_run(self) -> "Champion":
        if not lies_below(self.checkpoint, RunLayout(self.run).folder):
            raise ValueError(f"{self.checkpoint!r} is no checkpoint of run {self.run!r}")
        return self


def champion(storage: Storage, recipe: str) -> Champion:
    """Return the champion of a recipe, whose files are there. Raises ConfigError if there is none, or a file of it is gone."""
    try:
        chosen = recorded(storage, recipe)
    except DamagedError as error:
        raise ConfigError(str(error)) from error
    if chosen is None:
        recipes = {key.rpartition("/")[2].removesuffix(".json") for key in storage.list(CHAMPIONS)}
        hint = did_you_mean(recipe, recipes, "`nbrl promote RUN` makes one")
        raise ConfigError(f"the recipe {recipe!r} has no champion in {storage.settings.root}; {hint}")
    try:
        weights = weights_digest(storage, chosen.checkpoint)
        gone = missing(storage, chosen.checkpoint)
    except (MissingError, DamagedError) as error:
        raise ConfigError(f"the champion of {recipe!r} cannot be used: {error}; {_other(chosen, storage)}") from error
    if gone:
        raise ConfigError(f"the champion of {recipe!r} cannot be used: {storage.uri(gone[0])} is gone; {_other(chosen, storage)}")
    if weights != chosen.weights:
        raise ConfigError(
            f"the champion of {recipe!r} cannot be used: {storage.uri(chosen.checkpoint)} holds other weights than were "
            f"promoted; {_other(chosen, storage)}"
        )
    return chosen


def recorded(storage: Storage, recipe: str) -> Champion | None:
    """Return the champion of a recipe as it was promoted, whether or not its files are there. Raises DamagedError."""
    key = champion_of(recipe)
    try:
        return Champion.model_validate(storage.read_json(key))
    except MissingError:
        return None
    except ValidationError as error:
        raise DamagedError(f"{storage.uri(key)} names no champion; `nbrl promote RUN` writes it again") from error


def champions(storage: Storage) -> set[str]:
    """Return the folders of the checkpoints that are champions, or were until the last promotion of their recipe.

    Raises DamagedError if one cannot be read.
    """
    recipes = [key.rpartition("/")[2].removesuffix(".json") for key in storage.list(CHAMPIONS)]
    found = [each for recipe in recipes if (each := recorded(storage, recipe))]
    return {each.checkpoint for each in [*found, *(each.before for each in found if each.before)]}


def weights_digest(storage: Storage, checkpoint: str) -> str:
    """Return the digest of a checkpoint's weights, by its manifest. Raises MissingError or DamagedError."""
    part = {name: digest for name, digest in sorted(_manifest(storage, checkpoint).items()) if name.startswith(f"{HF}/")}
    return hashlib.sha256(json.dumps(part).encode()).hexdigest()


def missing(storage: Storage, checkpoint: str) -> list[str]:
    """Return keys of the files of a checkpoint's model that its manifest names and the storage does not have."""
    keys = set(storage.list(checkpoint))
    names = [name for name in _manifest(storage, checkpoint) if name.startswith(f"{HF}/")]
    return [key for name in names if (key := f"{checkpoint}/{name}") not in keys]


def _manifest(storage: Storage, checkpoint: str) -> dict[str, str]:
    key = f"{checkpoint}/{MANIFEST}"
    return read_manifest(storage.read_bytes(key), storage.uri(key))


def _other(found: Champion, storage: Storage) -> str:
    return (
        f"bring the files back from a copy, or promote another with `nbrl promote {found.run}@UPDATES{storage.settings.option}`"
    )
