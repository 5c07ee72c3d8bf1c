"""Checks, before work starts, everything that is then known to fail."""

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from nbrl.agent.http.client import usable_key
from nbrl.infra import ray_cluster, tracking_address
from nbrl.infra.engine.arguments import refusal
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import InfraError
from nbrl.infra.gpu import available_mb, gpus
from nbrl.infra.paths import expanded
from nbrl.infra.process.child import port_in_use
from nbrl.infra.ray_cluster import RaySettings
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.infra.wandb_runs import WandbSettings, has_credentials
from nbrl.sandbox import doctor
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.own import OwnEnvironment
from nbrl.tasks.environments.stored import Contents
from nbrl.tasks.errors import ConfigError, RewardError
from nbrl.tasks.layout.runs import RUNS, DataLayout
from nbrl.tasks.learner.settings import StepSettings
from nbrl.tasks.model_folder.source import check_hub
from nbrl.tasks.reward.rules import own
from nbrl.tasks.reward.rules.rule import OF_CLASSES
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.config_check import Purpose, check_config, check_with
from nbrl.tasks.runs.gpu_memory import check_fits
from nbrl.tasks.runs.opening import continued
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Kind
from nbrl.tasks.runs.teacher import check_teacher

SHOWN_CHARS = 300  # of a library's message
PROBE_S = 5.0  # of tries of a request to a cloud for which a person waits
WORKER_MB = 500  # memory of a learner's worker with torch, Ray and transformers, before it loads a model


def prepared(recipe: str, overrides: Iterable[str], purpose: Purpose, run: str | None = None) -> Prepared:
    """Load a recipe with its overrides and run preflight on it. Raises ConfigError or SandboxError."""
    return preflight(load(recipe, overrides), purpose, run)


def preflight(config: RunConfig, purpose: Purpose, run: str | None = None, kind: Kind = RUNS, questions: str = "") -> Prepared:
    """Check a configuration; start no lasting process and write nothing. Raises ConfigError or SandboxError in one sentence.

    Where `run` names a run or evaluation whose questions are on storage, these are checked, or else those in the folder
    `questions` there: what environments read may be gone. Raises StorageError or DamagedError where the storage does not give
    them.
    """
    check_makeable("home", Path(config.home))
    try:
        storage = Storage(config.storage)
    except InfraError as error:
        raise ConfigError(str(error)) from error
    if storage.is_local:
        check_makeable("storage.root", expanded(config.storage.root))
    begun = None if run is None else continued(storage, run, config, kind)
    data = begun.layout.data if begun else DataLayout(questions) if questions else None
    contents = data and stored.contents(storage, data, config.environments)
    tables = None
    if contents:
        check_with(config, purpose, contents)
    else:
        tables = check_config(config, purpose)
        contents = stored.contents_of(config.environments, tables)
    if purpose != "evaluate a server":
        _engine(config.engine, config.ray.address is not None)
    if config.reward.judge is not None:
        try:
            usable_key(config.reward.judge.key)
        except ValueError as error:
            raise ConfigError(f"reward.judge.key: {error}, or set reward.judge.key to null if the server needs none") from error
    if purpose == "train":
        check_workers(config.update, config.ray)
        check_fits(config)
        check_teacher(config, storage)
        if config.update.teacher is not None:
            try:
                usable_key(config.update.teacher.key)
            except ValueError as error:
                raise ConfigError(f"update.loss.key: {error}, or leave it out if the server needs none") from error
        _tensorboard(config.tracking.tensorboard)
        _wandb(config.tracking.wandb)
    try:
        if config.ray.address is not None:
            ray_cluster.check_address(config.ray.address)
        if config.tracking.uri is not None and purpose == "train":
            tracking_address.check_uri(config.tracking.uri)
    except InfraError as error:
        raise ConfigError(str(error)) from error
    for name, works, message in doctor.boundary():
        if not works:
            raise ConfigError(f"{name}: {message}")
    _scorers(config, contents)
    return Prepared.of(config, tables, questions if tables is None and begun is None else "")


def rehearse(config: RunConfig, purpose: Purpose = "train") -> list[str]:
    """Make the slow checks of a dry run, and return in words what could not be checked. Raises ConfigError."""
    served = purpose == "evaluate a server"
    unchecked = [note] if not served and (note := check_hub(config.policy)) else []
    storage = Storage(config.storage)
    if not storage.is_local:
        try:
            unchecked += check_writable(config.storage)
        except InfraError as error:
            reason = " ".join(str(error).split())[:SHOWN_CHARS]
            raise ConfigError(f"storage.root: {reason}; check the bucket's name and its credentials") from error
    if config.engine.extra_args and not served:
        refused = refusal(config.engine)
        if refused is None:
            unchecked.append("engine.extra_args: the engine's environment did not answer; see what it says when it starts")
        elif refused:
            raise ConfigError(f"engine.extra_args: the engine says {refused!r}; correct it or leave it out")
    if config.tracking.uri is not None:
        try:
            tracking_address.check_reachable(config.tracking.uri)
        except InfraError as error:
            raise ConfigError(str(error)) from error
    if config.tracking.uri is not None and not config.tracking.uri.startswith(tracking_address.SERVERS):
        unchecked.append(f"tracking.uri {config.tracking.uri}: a database is first opened when the run starts")
    if config.update.teacher is not None and config.update.teacher.served:
        unchecked.append(f"update.loss.teacher {config.update.teacher.teacher}: it is asked when the run starts")
    if config.reward.judge is not None:
        unchecked.append(f"reward.judge: {config.reward.judge.base_url} is first asked when there are answers to grade")
    if config.ray.address is not None:
        contacted = "" if config.ray.address != "auto" else "no cluster was looked for; "
        unchecked.append(f"ray.address {config.ray.address}: {contacted}its processors and GPUs are known when it is joined")
    return unchecked


def check_writable(settings: StorageSettings) -> list[str]:
    """Raises StorageError soon if nothing can be written there. Returns what to warn of."""
    if Storage(settings, patience_s=PROBE_S).creates_once():
        return []
    return [
        f"storage.root {settings.root}: the server ignores conditional writes, so that several processes "
        "can record the same iteration; never let two of them train one run"
    ]


def check_makeable(key: str, folder: Path) -> None:
    """Raises ConfigError unless the folder exists or could be created, and this user may write to it."""
    existing = folder.absolute()
    if "\0" in str(folder):
        raise ConfigError(f"{key}: {str(folder)!r} can be no folder; choose another")
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    # A file system may refuse what the permissions allow (proc does): only its device number identifies it.
    if (
        not existing.is_dir()
        or not os.access(existing, os.W_OK | os.X_OK)
        or existing.stat().st_dev == Path("/proc").stat().st_dev
    ):
        raise ConfigError(f"{key}: nothing can be written at {folder.absolute()}, because of {existing}; choose another folder")


def _scorers(config: RunConfig, contents: Mapping[str, Contents]) -> None:
    """Make each class that scores once in its own process, which has fewer packages to import than this one."""
    for name, environment in config.environments.items():
        if isinstance(environment, OwnEnvironment) and contents[name].rules & {*OF_CLASSES}:
            try:
                fault = own.cannot_be_made(environment.place, environment.settings)
            except RewardError as error:
                raise ConfigError(f"environments.{name}: {error}") from error
            if fault:
                raise ConfigError(
                    f"environments.{name}: {environment.place} cannot be made in the sandbox in which it scores: {fault}; it can "
                    "import only what is installed or in its own package"
                )


def check_workers(update: StepSettings, ray: RaySettings) -> None:
    """Raises ConfigError unless the workers fit into memory: on the CPU each is a process with its own copy of torch."""
    workers = update.workers
    if ray.address is not None or (update.device != "cpu" and gpus()):
        return
    needed, free = workers * WORKER_MB, available_mb()
    if needed > free:
        raise ConfigError(
            f"update.workers is {workers}: without a model they need {needed} MB of memory, and {free} MB are free; lower it"
        )


def _tensorboard(folder: str | None) -> None:
    if folder is None:
        return
    if find_spec("tensorboard") is None:
        raise ConfigError("tracking.tensorboard needs the package tensorboard: pip install 'nbrl[tensorboard]'")
    _sink_folder("tracking.tensorboard", folder, "give one, or leave it out")


def _wandb(settings: WandbSettings | None) -> None:
    if settings is None:
        return
    if find_spec("wandb") is None:
        raise ConfigError("tracking.wandb needs the package wandb: pip install 'nbrl[wandb]'")
    if settings.folder is not None:
        _sink_folder("tracking.wandb.folder", settings.folder, "give one")
    elif not has_credentials():
        raise ConfigError(
            "tracking.wandb.mode is online, and there is no key: set WANDB_API_KEY, run `wandb login`, or set mode to offline"
        )


def _sink_folder(key: str, folder: str, remedy: str) -> None:
    if "://" in folder or not folder.strip():
        raise ConfigError(f"{key} {folder!r} is no folder of this machine; {remedy}")
    check_makeable(key, Path(folder))


def _engine(settings: EngineSettings, joined: bool) -> None:
    """Check the engine. In a cluster that is joined, engines may run on other machines, which are examined when it is."""
    ports = range(settings.port, settings.port + settings.count) if settings.port is not None else range(0)
    if ports and ports[-1] > 65535:
        raise ConfigError(f"engine.port {settings.port} leaves no ports for engine.count {settings.count}; choose a lower one")
    if joined:
        return
    if settings.device == "cuda" and not gpus():
        raise ConfigError("engine.device is cuda but no NVIDIA GPU is found here; set it to auto or cpu, or check nvidia-smi")
    if not settings.python.exists():
        raise ConfigError(f"there is no engine environment at {settings.folder}: run `make setup`, or set engine.environment")
    for port in ports:
        if port_in_use(port):
            raise ConfigError(f"engine.port {port} is taken: end what listens there, choose another, or leave it out")
