"""The settings in which the things that are compared differ."""

import json
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from nbrl.tasks.comparison.side import Side
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.runs.beginning import without_passwords
from nbrl.tasks.runs.decisive import decisive

POLICY = "the initial policy's files"  # by their digest: two folders of one name may hold different models
SOURCE = "the source of environments."
DIGITS = 12


class Setting(BaseModel):
    """The value of a key on each side, as JSON, None where it is not set. Only what `decides` makes another result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    values: tuple[str | None, ...]
    decides: bool


def differing(sides: Sequence[Side], indifferent: bool) -> list[Setting]:
    """The settings that are not the same on all sides that have any; with `indifferent` also those that decide nothing."""
    deciding = {key for side in sides for key in _leaves(side, False)} | {POLICY}
    found = _differing([_leaves(side, indifferent) for side in sides]) | _differing([_digests(side) for side in sides])
    rows = [Setting(key=key, values=values, decides=key in deciding or key.startswith(SOURCE)) for key, values in found.items()]
    return sorted(rows, key=lambda setting: not setting.decides)


def _differing(sides: Sequence[dict[str, str] | None]) -> dict[str, tuple[str | None, ...]]:
    """The values of the keys in which those sides differ that are not None."""
    keys = dict.fromkeys(key for each in sides if each is not None for key in each)
    return {
        key: tuple(None if each is None else each.get(key) for each in sides)
        for key in keys
        if len({each.get(key) for each in sides if each is not None}) > 1
    }


def _leaves(side: Side, indifferent: bool) -> dict[str, str]:
    """Values as JSON by key."""
    values = decisive(side.config, indifferent)
    return {key: without_passwords(json.dumps(value, ensure_ascii=False)) for key, value in values.items()}


def _digests(side: Side) -> dict[str, str] | None:
    """Of files that the settings of a run only name."""
    if side.run.kind != RUNS:
        return None
    sources = {f"{SOURCE}{name}": code[:DIGITS] for name, code in side.run.sources.items()}
    return {POLICY: side.run.policy[:DIGITS], **sources}
