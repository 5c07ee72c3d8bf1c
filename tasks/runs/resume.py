"""The configuration with which a run goes on."""

from collections.abc import Sequence

from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.epochs import newest_settings
from nbrl.tasks.runs.recipes import from_settings
from nbrl.tasks.runs.run import Kind, known_run, stored_config
from nbrl.tasks.runs.trust import check_trusted


def resumed_config(storage: Storage, name: str, overrides: Sequence[str], kind: Kind = RUNS) -> RunConfig:
    """The configuration of the last start of a run or evaluation, on this storage, with overrides applied: to read.

    What starts anything by it, or asks a server, takes `trusted_config`.
    Raises ConfigError, also for an override that names another storage: the run is not there.
    """
    run = known_run(storage, name, kind)
    last = newest_settings(storage, run.layout)
    stored = stored_config(storage, run.model_copy(update={"config": last or run.config})).model_dump(mode="json")
    stored |= {"storage": storage.settings.model_dump(mode="json")}
    config = from_settings(RunConfig, stored, storage.uri(run.layout.config), overrides)
    if config.storage.root != storage.settings.root:
        raise ConfigError(
            f"storage.root is {config.storage.root} but {run.layout.title} is in {storage.settings.root}; leave it out, or copy "
            "the storage there and name it by --root"
        )
    return config


def trusted_config(
    storage: Storage,
    name: str,
    overrides: Sequence[str],
    trust: bool,
    kind: Kind = RUNS,
    used: tuple[str, ...] = ("",),
    anew: bool = False,
) -> RunConfig:
    """As `resumed_config`, to act by. Raises ConfigError unless the user trusts what its `used` sections reach: see trust.py.

    `anew`: questions are read again, though the run has a copy of them.
    """
    config = resumed_config(storage, name, overrides, kind)
    stored, layout = resumed_config(storage, name, (), kind), known_run(storage, name, kind).layout
    check_trusted(config, stored, overrides, layout.title, trust, used, not anew and storage.exists(layout.data.digests))
    return config
