"""Questions whose answers are functions: the tests that judge them, from columns of the file of questions."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from nbrl.tasks.environments.nested import list_in
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.reward.rules.code.reference import reference_of
from nbrl.tasks.reward.rules.rule import CODE

TESTED = ("tests", "setup", "entry_points")
FETCHED = "reference"  # has all three in a file that `nbrl data fetch` wrote


def tested_column(where: str, table: pa.Table, columns: Mapping[str, str], rules: Sequence[str]) -> list[str]:
    """The reference of each row by the rule code; empty for other rows. Raises ConfigError."""
    tests, setup, entry_points = (_values(table, columns.get(name, name)) for name in TESTED)
    if columns.get(TESTED[0], TESTED[0]) not in table.column_names:
        if FETCHED not in table.column_names:
            hint = did_you_mean(TESTED[0], table.column_names)
            raise ConfigError(f"{where} lacks the column 'tests', which the rule code needs; {hint} columns.tests names it")
        return [str(value or "") if rule == CODE else "" for value, rule in zip(_values(table, FETCHED), rules, strict=True)]
    found = []
    for place, rule in enumerate(rules):
        try:
            given = (_strings(tests[place]), str(setup[place] or ""), _strings(entry_points[place])) if rule == CODE else None
        except TypeError as error:
            raise ConfigError(
                f"{where}: row {place} has {error} in its tests or entry points; both are lists of strings"
            ) from error
        found.append(reference_of(*given) if given else "")
    return found


def _values(table: pa.Table, name: str) -> list[Any]:
    return list(table[name].to_pylist()) if name in table.column_names else [None] * len(table)


def _strings(value: Any) -> list[str]:
    """A list of strings, as text too; a single one is a list of one, nothing an empty one. Raises TypeError with what is none."""
    values = list_in(value) or [value] if isinstance(value, str) else value or []
    for each in values if isinstance(values, list) else [values]:
        if not isinstance(each, str):
            raise TypeError(repr(each)[:80])
    return list(values)
