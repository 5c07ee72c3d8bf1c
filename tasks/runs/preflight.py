"""Everything that can be known to fail before work starts, as one error."""

import os
from collections.abc import Iterable
from pathlib import Path

from nbrl.infra import ray_cluster, tracking
from nbrl.infra.engine.arguments import refusal
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import InfraError
from nbrl.infra.gpu import gpus
from nbrl.infra.memory import available_mb
from nbrl.infra.process.child import port_in_use
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.sandbox import doctor
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.source import check_hub
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.config_check import Purpose, check_config
from nbrl.tasks.runs.recipes import load

SHOWN_CHARS = 300  # of what a library says
PROBE_ATTEMPTS = 3  # of a request to S3 that a person waits for
WORKER_MB = 500  # of a learner's worker with torch, Ray and transformers in memory, and no model yet


def prepared(recipe: str, overrides: Iterable[str], purpose: Purpose) -> RunConfig:
    """The configuration of a recipe and its overrides, once it has passed preflight. Raises ConfigError or SandboxError."""
    config = load(recipe, overrides)
    preflight(config, purpose)
    return config


def preflight(config: RunConfig, purpose: Purpose) -> None:
    """Raises ConfigError or SandboxError in one sentence; starts nothing that stays and writes nothing."""
    check_config(config, purpose)
    _makeable("home", Path(config.home))
    try:
        storage = Storage(config.storage)
    except InfraError as error:
        raise ConfigError(str(error)) from error
    if storage.is_local:
        _makeable("storage.root", Path(config.storage.root).expanduser())
    _engine(config.engine)
    if purpose == "train":
        _workers(config)
    try:
        if config.ray.address is not None:
            ray_cluster.check_address(config.ray.address)
        if config.tracking.uri is not None and purpose == "train":
            tracking.check_uri(config.tracking.uri)
    except InfraError as error:
        raise ConfigError(str(error)) from error
    for name, works, message in doctor.boundary():
        if not works:
            raise ConfigError(f"{name}: {message}")


def rehearse(config: RunConfig) -> list[str]:
    """Check what only a dry run takes the time for, and say in words what could not be checked. Raises ConfigError."""
    unchecked = [note] if (note := check_hub(config.policy)) else []
    storage = Storage(config.storage)
    if not storage.is_local:
        try:
            writable(config.storage)
        except InfraError as error:
            said = " ".join(str(error).split())[:SHOWN_CHARS]
            raise ConfigError(f"storage.root: {said}; check the bucket's name and the AWS_* variables") from error
    if config.engine.extra_args:
        refused = refusal(config.engine)
        if refused is None:
            unchecked.append("engine.extra_args: the engine's environment did not answer; see what it says when it starts")
        elif refused:
            raise ConfigError(f"engine.extra_args: the engine says {refused!r}; correct it or leave it out")
    if config.tracking.uri is not None and not config.tracking.uri.startswith(("http://", "https://")):
        unchecked.append(f"tracking.uri {config.tracking.uri}: a database is first opened when the run starts")
    if config.ray.address is not None:
        contacted = "" if config.ray.address != "auto" else "no cluster was looked for; "
        unchecked.append(f"ray.address {config.ray.address}: {contacted}its processors and GPUs are known when it is joined")
    return unchecked


def writable(settings: StorageSettings) -> None:
    """Raises StorageError soon when nothing can be written there."""
    storage, probe = Storage(settings, attempts=PROBE_ATTEMPTS), ".probe"
    storage.write_bytes(probe, b"")
    storage.delete(probe)


def _makeable(key: str, folder: Path) -> None:
    """Whether the folder is there, or could be made, and written to by this user."""
    there = folder.absolute()
    if "\0" in str(folder):
        raise ConfigError(f"{key}: {str(folder)!r} can be no folder; choose another")
    while not there.exists() and there != there.parent:
        there = there.parent
    # A system of files may refuse to everyone what the rights allow (proc does): only devices' numbers tell it apart.
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or os.stat(there).st_dev == os.stat("/proc").st_dev:
        raise ConfigError(f"{key}: nothing can be written at {folder.absolute()}, because of {there}; choose another folder")


def _workers(config: RunConfig) -> None:
    """On the CPU of this machine every worker is a process of its own, with its own copy of torch and of its shard."""
    workers = config.update.workers
    if config.ray.address is not None or (config.update.device != "cpu" and gpus()):
        return
    needed, free = workers * WORKER_MB, available_mb()
    if needed > free:
        raise ConfigError(
            f"update.workers is {workers}: without a model they need {needed} MB of memory, and {free} MB are free; lower it"
        )


def _engine(settings: EngineSettings) -> None:
    if settings.device == "cuda" and not gpus():
        raise ConfigError("engine.device is cuda but no NVIDIA GPU is found here; set it to auto or cpu, or check nvidia-smi")
    if not settings.python.exists():
        raise ConfigError(f"there is no engine environment at {settings.folder}: run `make setup`, or set engine.environment")
    if settings.port is not None:
        if settings.port + settings.count > 65536:
            raise ConfigError(
                f"engine.port {settings.port} leaves no ports for engine.count {settings.count}; choose a lower one"
            )
        for port in range(settings.port, settings.port + settings.count):
            if port_in_use(port):
                raise ConfigError(f"engine.port {port} is taken: end what listens there, choose another, or leave it out")
