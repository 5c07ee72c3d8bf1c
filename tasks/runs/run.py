"""A run on storage: its identity and its configuration."""

import uuid
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, ValidationError

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, InfraError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, OtherFormatError, did_you_mean
from nbrl.tasks.layout.runs import EVALUATIONS, NAME, RUNS, RunLayout, layout_of, name_of

Kind = Literal["runs", "evaluations"]
DIGITS = 20  # shown of another format's number
FORMAT: Literal[2] = 2  # of all that is stored of a run or an evaluation


class Run(ClosedModel):
    """Identity of a run, or of an evaluation of its own.

    `format` is that of its files. `config` are the settings it began with, `config_digest` is that of those that decide results,
    `policy` that of its initial model's files, `teacher` that of those of its teacher, `sources` those of the code of
    environments of one's own, by environment.
    """

    format: Literal[2] = FORMAT
    name: str
    kind: Kind = RUNS
    run_id: str
    config_digest: str
    seed: int
    recipe: str
    policy: str
    teacher: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    config: dict[str, Any]

    @property
    def layout(self) -> RunLayout:
        return layout_of(self.kind, self.name)

    @property
    def environments(self) -> tuple[str, ...]:
        """Return the names of its environments."""
        return tuple(self.config.get("environments", ()))


def new_name(recipe: str) -> str:
    return f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


def checked_name(name: str) -> str:
    """Return the name if it can be that of a folder. Raises ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"a run cannot be named {name!r}: use up to 100 letters, digits, '.', '_' and '-', first a letter or digit"
        )
    return name


def named(text: str) -> tuple[str, int | None]:
    """Return the run and the number of updates of RUN[@N]. Raises ConfigError."""
    name, at, number = text.partition("@")
    if at and not (number.isascii() and number.isdigit()):
        raise ConfigError(f"{text!r} names no checkpoint: write RUN, or RUN@N with the number of its updates")
    return checked_name(name), int(number) if at else None


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
    run = find_run(storage, checked_name(name), kind)
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


def removed_meanwhile(layout: RunLayout) -> InfraError:
    return InfraError(f"{layout.title} was removed by another process while it was opened; try again")
