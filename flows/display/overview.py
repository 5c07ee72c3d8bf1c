"""The table of all runs and evaluations."""

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType

from nbrl.flows.display.tables import table
from nbrl.flows.display.terminal import plain
from nbrl.tasks.comparison.overview import Row

COLUMNS = ("name", "state", "iterations", "first", "last", "best", "rollouts", "disk", "age", "recipe", "logs")
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def overview(rows: Sequence[Row], root: str) -> RenderableType:
    """One row for each; below the table, why a run failed or what of it is damaged."""
    if not rows:
        return plain(f"there are no runs in {root} yet; `nbrl train RECIPE` makes one")
    now = time.time()
    reasons = [
        plain(f"{row.name}: {row.reason}", "red")
        for row in rows
        if row.state in ("failed", "damaged", "not readable") and row.reason
    ]
    return Group(table(COLUMNS, [_cells(row, now) for row in rows]), *reasons)


def _cells(row: Row, now: float) -> list[str]:
    state = f"running on {row.host}" if row.state == "running" else row.state
    iterations = "evaluation" if row.kind == "evaluations" else f"{row.iterations}/{'?' if row.planned is None else row.planned}"
    scores = [_score(value) for value in (row.first, row.last, row.best, row.rollouts)]
    age = row.age(now)
    return [row.name, state, iterations, *scores, size(row.bytes), "" if age is None else lasted(age), row.recipe, row.logs]


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def size(count: int | None) -> str:
    """Bytes in powers of 1000; empty if unknown."""
    if count is None:
        return ""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def lasted(seconds: float) -> str:
    """A time in its largest unit."""
    return next((f"{seconds / length:.0f} {unit}" for length, unit in UNITS if seconds >= length), f"{seconds:.0f} s")
