"""Compares runs and evaluations: scores with intervals, paired differences, settings, cost, and how high each curve can rise."""

import json
from collections.abc import Sequence

from nbrl.infra.closed import ClosedModel
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.figures import Pair, paired
from nbrl.tasks.comparison.scored import Scored, Side, read
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.runs.decisive import decisive
from nbrl.tasks.runs.epochs import without_passwords

POLICY = "the initial policy's files"  # by their digest: two folders of one name may hold different models
SOURCE = "the source of environments."
DIGITS = 12


class Setting(ClosedModel):
    """The value of a key on each side, as JSON, None where it is not set. Only what `decides` makes another result."""

    key: str
    values: tuple[str | None, ...]
    decides: bool


class Comparison(ClosedModel):
    """`pairs` are of the final evaluations: each side with the first. `settings` are those that differ."""

    sides: tuple[Scored, ...]
    pairs: tuple[Pair, ...]
    settings: tuple[Setting, ...]


def sides_of(storage: Storage, labels: Sequence[str]) -> list[Side]:
    """Return what is compared. Raises ConfigError for fewer than two, a missing one, and two that are the same."""
    if len(labels) < 2:
        raise ConfigError("a comparison needs at least two runs or evaluations; name another one")
    seen: dict[object, str] = {}
    sides = []
    for label in labels:
        if label in seen.values():
            raise ConfigError(f"{label!r} cannot be compared with itself; name another run or evaluation")
        side = read(storage, label)
        if side.identity in seen:
            raise ConfigError(f"{seen[side.identity]!r} and {label!r} are the same evaluation; name another one")
        seen[side.identity] = label
        sides.append(side)
    return sides


def compare(sides: Sequence[Side], indifferent: bool = False) -> Comparison:
    """Compare them; with `indifferent` also by settings that decide nothing."""
    first, *rest = sides
    return Comparison(
        sides=tuple(side.scored for side in sides),
        pairs=tuple(paired(*((each.scored.label, each.questions) for each in (first, side))) for side in rest),
        settings=tuple(differing(sides, indifferent)),
    )


def differing(sides: Sequence[Side], indifferent: bool) -> list[Setting]:
    """Return the settings that differ between sides; with `indifferent` also those that decide nothing."""
    deciding = {key for side in sides for key in _leaves(side, False)} | {POLICY}
    settings = _differing([_leaves(side, indifferent) for side in sides]) | _differing([_digests(side) for side in sides])
    rows = [
        Setting(key=key, values=values, decides=key in deciding or key.startswith(SOURCE)) for key, values in settings.items()
    ]
    return sorted(rows, key=lambda setting: not setting.decides)


def _differing(sides: Sequence[dict[str, str] | None]) -> dict[str, tuple[str | None, ...]]:
    """Return the values of the keys in which those sides differ that are not None."""
    keys = dict.fromkeys(key for each in sides if each is not None for key in each)
    return {
        key: tuple(None if each is None else each.get(key) for each in sides)
        for key in keys
        if len({each.get(key) for each in sides if each is not None}) > 1
    }


def _leaves(side: Side, indifferent: bool) -> dict[str, str]:
    """Return the values as JSON by key."""
    values = decisive(side.config, indifferent)
    return {key: without_passwords(json.dumps(value, ensure_ascii=False)) for key, value in values.items()}


def _digests(side: Side) -> dict[str, str] | None:
    """Return the digests of files that the settings of a run only name."""
    if side.run.kind != RUNS:
        return None
    sources = {f"{SOURCE}{name}": code[:DIGITS] for name, code in side.run.sources.items()}
    return {POLICY: side.run.policy[:DIGITS], **sources}
