"""A run on storage: its identity and its configuration."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, PrivateAttr, ValidationError

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, InfraError, StorageError
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.environment import Tables
from nbrl.tasks.errors import ConfigError, OtherFormatError, did_you_mean, fault_in_words
from nbrl.tasks.layout.runs import EVALUATIONS, NAME, RUNS, RunLayout, layout_of, name_of
from nbrl.tasks.model_folder.source import content_digest, fetch
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import differences, digest
from nbrl.tasks.runs.epochs import others_began
from nbrl.tasks.runs.trust import remember

Kind = Literal["runs", "evaluations"]
DIGITS = 20  # shown of another format's number
FORMAT: Literal[1] = 1  # of all that is stored of a run or an evaluation


class Prepared(BaseModel):
    """A configuration that passed preflight, and until it is on storage what its environments gave then.

    `questions` is the folder on storage of another run's questions, where they are taken from there.

    The tables are private: Prefect records the parameters of a flow, and of these the settings alone.
    """

    config: RunConfig
    questions: str = ""
    _tables: Mapping[str, Tables] | None = PrivateAttr(None)

    @classmethod
    def of(cls, config: RunConfig, tables: Mapping[str, Tables] | None, questions: str = "") -> "Prepared":
        made = cls(config=config, questions=questions)
        made._tables = tables
        return made

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
        return {"type": "object"}  # Prefect asks when a flow is imported, and that of all settings would take half a second

    @property
    def tables(self) -> Mapping[str, Tables] | None:
        """Return what each environment gave; None if that was on storage already, or has been taken."""
        return self._tables

    def take(self) -> Mapping[str, Tables] | None:
        """Return the tables, for the last time: they may be large, and a run lasts long."""
        taken, self._tables = self._tables, None
        return taken


class Run(ClosedModel):
    """Identity of a run, or of an evaluation of its own.

    `format` is that of its files. `config` are the settings it began with, `config_digest` is that of those that decide results,
    `policy` that of its initial model's files, `sources` those of the code of environments of one's own, by environment.
    """

    format: Literal[1] = FORMAT
    name: str
    kind: Kind = RUNS
    run_id: str
    config_digest: str
    seed: int
    recipe: str
    policy: str
    sources: dict[str, str] = Field(default_factory=dict)
    config: dict[str, Any]

    @property
    def layout(self) -> RunLayout:
        return layout_of(self.kind, self.name)


def new_name(recipe: str) -> str:
    return f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


def checked_name(name: str) -> str:
    """Return the name if it can be that of a folder. Raises ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"a run cannot be named {name!r}: use up to 100 letters, digits, '.', '_' and '-', first a letter or digit"
        )
    return name


def find_run(storage: Storage, name: str, kind: Kind = RUNS) -> Run | None:
    """Return the run, or evaluation, of this name, or None. Raises ConfigError if something else has the name, and
    OtherFormatError if another version of nbrl wrote it.
    """
    layout = layout_of(kind, name)
    path = layout.identity
    if not storage.exists(path):
        return None
    try:
        fields = storage.read_json(path)
        _check_format(layout, fields.get("format"))
        run = Run.model_validate(fields)
    except (DamagedError, ValidationError) as error:
        raise ConfigError(
            f"{storage.uri(path)} is not what was written there; bring it back from a copy, or choose another name"
        ) from error
    if (run.name, run.kind) != (name, kind):  # what a file says of itself leads nowhere
        raise ConfigError(f"{storage.uri(path)} is of another run, {run.name[:100]!r}; give its folder that name")
    return run


def _check_format(layout: RunLayout, found: object) -> None:
    if found is None or (isinstance(found, int) and found != FORMAT):
        named = "names no format" if found is None else f"is of format {str(found)[:DIGITS]}"
        raise OtherFormatError(
            f"{layout.title} {named}, and this version of nbrl reads format {FORMAT}; use the version that made it"
        )


def known_run(storage: Storage, name: str, kind: Kind = RUNS) -> Run:
    """Return the run, or evaluation, of this name. Raises ConfigError if there is none, or something else of that name."""
    run = find_run(storage, name, kind)
    if run is None:
        raise unknown(storage, name, kind)
    return run


def unknown(storage: Storage, name: str, *kinds: Kind) -> ConfigError:
    """Return the error for an unknown name of these kinds, with the place that was searched and the names there."""
    names = {name_of(key) for kind in kinds for key in storage.list(kind) if key.count("/") > 1} - {name}
    what, root = " or ".join(kind.removesuffix("s") for kind in kinds), storage.settings.root
    if EVALUATIONS not in kinds and find_run(storage, name, EVALUATIONS) is not None:
        return ConfigError(f"{name!r} in {root} is an evaluation, and this is for a {what}; {did_you_mean(name, names)}")
    if not names:
        return ConfigError(f"there is no {what} {name!r} in {root}, nor any other; give another --root, or begin one")
    return ConfigError(f"there is no {what} {name!r} in {root}; {did_you_mean(name, names)}")


def drop_if_empty(run: Run, storage: Storage) -> None:
    """Delete a run that ended before it did anything, so that its name is free again.

    A process that continues a run takes its epoch first and looks for the identity then. This one deletes the identity first and
    looks for such epochs then, so that at least one of the two sees the other.
    """
    layout = run.layout
    if others_began(storage, layout) or storage.list(layout.iterations) or storage.list(layout.evaluations):
        return
    storage.delete(layout.identity)
    if others_began(storage, layout):
        storage.create_json(layout.identity, run.model_dump(mode="json"))
        return
    storage.delete(layout.folder)


def removed_meanwhile(layout: RunLayout) -> InfraError:
    return InfraError(f"{layout.title} was removed by another process while it was opened; try again")


@contextmanager
def opened(prepared: Prepared, name: str, storage: Storage, kind: Kind = RUNS, policy: str | None = None) -> Iterator[Run]:
    """Open a run as `open_run` does. A run that this process created and that an error leaves empty is deleted."""
    questions = prepared.questions
    run, created = open_run(prepared.config, name, storage, prepared.take(), questions, kind, policy)
    with _dropped_if_empty(run, storage, created):
        yield run


@contextmanager
def _dropped_if_empty(run: Run, storage: Storage, created: bool) -> Iterator[None]:
    """Delete a run that this process created if an error leaves it empty."""
    try:
        yield
    except BaseException:
        if created:
            with suppress(StorageError):  # it hides no error; the next run of this name deletes what is left
                drop_if_empty(run, storage)
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
    it is on storage. Raises ConfigError when the run exists with another configuration.
    """
    run = Run(
        name=name,
        kind=kind,
        run_id=uuid.uuid4().hex,
        config_digest=digest(config),
        seed=config.seed,
        recipe=config.name,
        policy=content_digest(fetch(config.policy)) if policy is None else policy,
        sources=sources_of(config),
        config=config.model_dump(mode="json"),
    )
    earlier = find_run(storage, name, kind)
    created = earlier is None and storage.create_json(run.layout.identity, run.model_dump(mode="json"))
    if not created:
        earlier = earlier or find_run(storage, name, kind)
        if earlier is None:
            raise removed_meanwhile(run.layout)
        check_continues(storage, earlier, config, run.policy)
        run = earlier
    remember(config)
    with _dropped_if_empty(run, storage, created):
        if created:  # what a run of this name left that was dropped only in part
            kept = (run.layout.identity, run.layout.epochs, run.layout.lease)  # of a process that continues this one already
            storage.delete_keys(key for key in storage.list(run.layout.folder) if not key.startswith(kept))
        stored.write(config.environments, storage, run.layout.data, loaded, questions)
        storage.create_bytes(run.layout.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).encode())
    return run, created


def check_continues(storage: Storage, earlier: Run, config: RunConfig, policy: str = "") -> None:
    """Raises ConfigError where a setting that decides results, or code that scores, is not what the run began with.

    `policy` is the digest of the initial model's files, which is compared too if given.
    """
    what = earlier.kind.removesuffix("s")
    differing = differences(stored_config(storage, earlier), config, what)
    if policy and earlier.policy != policy:
        differing.append(f"policy.path {config.policy.path} holds another model than it began with")
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
