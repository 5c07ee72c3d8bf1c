"""The configuration with which a run goes on."""

from collections.abc import Iterable

from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.layout import RUNS, name_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import from_settings
from nbrl.tasks.runs.run import find_run, stored_config


def resumed_config(storage: Storage, name: str, overrides: Iterable[str]) -> RunConfig:
    """The configuration that the run began with, on this storage, with overrides applied. Raises ConfigError."""
    run = find_run(storage, name)
    if run is None:
        known = {name_of(key) for key in storage.list(RUNS)}
        raise ConfigError(f"there is no run {name!r} in {storage.settings.root}; {did_you_mean(name, known)}")
    stored = stored_config(storage, run).model_dump(mode="json") | {"storage": storage.settings.model_dump(mode="json")}
    return from_settings(RunConfig, stored, storage.uri(run.layout.config), overrides)
