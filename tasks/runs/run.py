"""A run on storage: its identity and its configuration."""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import sources
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout import RunLayout
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Scope

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Run(BaseModel):
    """Identity of a run. `config_digest` is that of the configuration it was created with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    run_id: str
    config_digest: str
    seed: int
    recipe: str

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.name)

    def scope(self, iteration: int, updates: int = 0) -> Scope:
        return Scope(
            run=self.name,
            run_id=self.run_id,
            config_digest=self.config_digest,
            seed=self.seed,
            iteration=iteration,
            updates=updates,
        )


def new_name(recipe: str) -> str:
    return f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


def checked_name(name: str) -> str:
    """Return the name if it can be that of a folder. Raises ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"a run cannot be named {name!r}: use up to 100 letters, digits, '.', '_' and '-', first a letter or digit"
        )
    return name


def find_run(storage: Storage, name: str) -> Run | None:
    """Return the run of this name, or None. Raises ConfigError if something else has the name."""
    path = RunLayout(name).identity
    if not storage.exists(path):
        return None
    try:
        return Run.model_validate_json(storage.read_bytes(path))
    except ValidationError as error:
        raise ConfigError(f"{storage.uri(path)} describes no run; name another run, or bring the file back") from error


def drop_if_empty(run: Run, storage: Storage) -> None:
    """Delete a run that ended before it did anything, so that its name is free again."""
    if not storage.list(run.layout.iterations) and not storage.list(run.layout.evaluations):
        storage.delete(run.layout.folder)


@contextmanager
def held(config: RunConfig, name: str, storage: Storage) -> Iterator[Run]:
    """Open the run of this name exclusively for this process. If an error leaves it empty, it is deleted.

    Raises InfraError if another process holds it.
    """
    with Home(config.home).hold(f"run-{name}", f"run {name!r} is being trained by another process"):
        run = open_run(config, name, storage)
        try:
            yield run
        except BaseException:
            drop_if_empty(run, storage)
            raise


def open_run(config: RunConfig, name: str, storage: Storage) -> Run:
    """Return the run of this name, created with its data on first use. Raises ConfigError if its configuration differs."""
    existing = find_run(storage, name)
    if existing is not None:
        if existing.config_digest != config.digest():
            raise ConfigError(
                f"run {name!r} exists with another configuration ({storage.uri(existing.layout.config)}); "
                "choose another --run name, or the same settings to continue it"
            )
        return existing
    run = Run(name=name, run_id=uuid.uuid4().hex, config_digest=config.digest(), seed=config.seed, recipe=config.name)
    sources.write(config.data, storage, run.layout.data)
    storage.write_bytes(run.layout.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).encode())
    storage.write_bytes(run.layout.identity, run.model_dump_json(indent=1).encode())
    return run
