"""Opens a run: one process creates it with its data, others continue it with the same settings."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import yaml
from pydantic import ValidationError

from nbrl.infra.errors import StorageError
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.environment import Tables
from nbrl.tasks.errors import ConfigError, fault_in_words
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS
from nbrl.tasks.model_folder.source import content_digest, fetch
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import differences, digest
from nbrl.tasks.runs.lease import holder
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.run import Kind, Run, find_run, removed_meanwhile
from nbrl.tasks.runs.teacher import teacher_digest
from nbrl.tasks.runs.trust import remember


def drop(run: Run, storage: Storage, ended: list[str]) -> bool:
    """Delete a run in which no process began anything but the starts of the epochs `ended` (keys), and return whether it did so.

    A process that continues a run takes its epoch first and looks for the identity then. This one deletes the identity first and
    looks for such epochs then, so that at least one of the two sees the other.
    """
    layout = run.layout
    if storage.list(layout.epochs) != ended:
        return False
    storage.delete(layout.identity)
    if storage.list(layout.epochs) != ended:
        storage.create_json(layout.identity, run.model_dump(mode="json"))
        return False
    storage.delete(layout.folder)
    return True


def continued(
    storage: Storage, name: str, config: RunConfig, kind: Kind = RUNS, policy: str = "", teacher: str = ""
) -> Run | None:
    """Return the run, or evaluation, of this name, which a start with this configuration continues.

    None if there is none, or one that failed before it made anything, with other settings: it is replaced. Raises ConfigError as
    `check_continues` does.
    """
    if (run := find_run(storage, name, kind)) is None:
        return None
    try:
        check_continues(storage, run, config, policy, teacher)
    except ConfigError:
        if _starts_without_work(storage, run):
            return None
        raise
    return run


def _starts_without_work(storage: Storage, run: Run) -> list[str]:
    """Return the epochs (keys) of a run whose starts all ended before they made anything; empty for any other run."""
    layout = run.layout
    made = (layout.iterations, layout.evaluations, layout.all_sessions)
    if holder(storage, layout) is not None or any(storage.list(folder) for folder in made):
        return []
    return storage.list(layout.epochs)


@contextmanager
def opened(prepared: Prepared, name: str, storage: Storage, kind: Kind = RUNS, policy: str | None = None) -> Iterator[Run]:
    """Open a run as `open_run` does. A run that this process created is deleted if an error comes before any start of it."""
    questions = prepared.questions
    run, created = open_run(prepared.config, name, storage, prepared.take(), questions, kind, policy)
    with _dropped_unless_begun(run, storage, created):
        yield run


@contextmanager
def _dropped_unless_begun(run: Run, storage: Storage, created: bool) -> Iterator[None]:
    """Delete a run that this process created if an error comes before any start of it."""
    try:
        yield
    except BaseException:
        if created:
            with suppress(StorageError):  # it hides no error; the next run of this name deletes what is left
                drop(run, storage, [])
        raise


def open_run(
    config: RunConfig,
    name: str,
    storage: Storage,
    loaded: Mapping[str, Tables] | None = None,
    questions: str = "",
    kind: Kind = RUNS,
    policy: str | None = None,
) -> tuple[Run, bool]:
    """Return the run, or evaluation, of this name with its data, and whether it was created now.

    Of several processes that try, exactly one creates it. `policy` is the digest of the model; by default it is that of the files
    of `policy.path`.

    `loaded` is what the environments give; without it, it is copied from the folder `questions` of another run, or loaded unless
    it is on storage. Raises ConfigError when the run exists with another configuration, unless it failed before it made
    anything: then it is replaced.
    """
    run = Run(
        name=name,
        kind=kind,
        run_id=uuid.uuid4().hex,
        config_digest=digest(config),
        seed=config.seed,
        recipe=config.name,
        policy=content_digest(fetch(config.policy)) if policy is None else policy,
        teacher=teacher_digest(config, storage),
        sources=sources_of(config),
        config=config.model_dump(mode="json"),
    )
    earlier = continued(storage, name, config, kind, run.policy, run.teacher)
    if earlier is None and (failed := find_run(storage, name, kind)) is not None:
        drop(failed, storage, _starts_without_work(storage, failed))
    created = earlier is None and storage.create_json(run.layout.identity, run.model_dump(mode="json"))
    if not created:
        earlier = earlier or find_run(storage, name, kind)
        if earlier is None:
            raise removed_meanwhile(run.layout)
        check_continues(storage, earlier, config, run.policy, run.teacher)
        run = earlier
    remember(config)
    with _dropped_unless_begun(run, storage, created):
        if created:  # what a run of this name left that was dropped only in part
            kept = (run.layout.identity, run.layout.epochs, run.layout.lease)  # of a process that continues this one already
            storage.delete_keys(key for key in storage.list(run.layout.folder) if not key.startswith(kept))
        stored.write(config.environments, storage, run.layout.data, loaded, questions)
        storage.create_bytes(run.layout.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).encode())
    return run, created


def check_continues(storage: Storage, earlier: Run, config: RunConfig, policy: str = "", teacher: str = "") -> None:
    """Raises ConfigError where a setting that decides results, or code that scores, is not what the run began with.

    `policy` is the digest of the initial model's files, and `teacher` that of its teacher's, which are compared too if given.
    """
    what = earlier.kind.removesuffix("s")
    differing = differences(stored_config(storage, earlier), config, what)
    if policy and earlier.policy != policy:
        differing.append(f"policy.path {config.policy.path} holds another model than it began with")
    if teacher and earlier.teacher != teacher:
        differing.append("update.loss.teacher holds another model than it began with")
    now = sources_of(config)
    gone = [name for name in earlier.sources if name in config.environments and name not in now]
    differing += [
        f"the source of environments.{name} has changed since it began"
        for name, source in now.items()
        if earlier.sources.get(name, source) != source
    ]
    if gone and not differing:
        raise ConfigError(
            f"the code of environments.{gone[0]}, which scores, is not found on this machine; bring it back, as it was when "
            f"{earlier.layout.title} began, to a folder on PYTHONPATH"
        )
    if differing:
        raise ConfigError(
            f"{earlier.layout.title} exists with another configuration: {'; '.join(differing)}; choose another "
            f"--{'name' if earlier.kind == EVALUATIONS else 'run name'}, or the same settings to continue it"
        )


def sources_of(config: RunConfig) -> dict[str, str]:
    """Return the SHA-256 of the source of each environment that has one of its own."""
    return {name: source for name, each in config.environments.items() if (source := each.source())}


def stored_config(storage: Storage, run: Run) -> RunConfig:
    """Return the configuration that a run began with; what has come since is at its default. Raises ConfigError."""
    try:
        return RunConfig.model_validate(run.config)
    except ValidationError as error:
        where = storage.uri(run.layout.identity)
        raise ConfigError(f"{where} is no configuration of this version: {fault_in_words(error)}; name another run") from error
