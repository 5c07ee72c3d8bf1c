"""Tables whose first column is never cut, so that names and ids can be typed back."""

import time
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table

from nbrl.flows.display.terminal import plain
from nbrl.tasks.comparison.overview import RunRow

MOST = {"answer": 20, "recipe": 16}  # widths at which columns are cut
NARROW = 10  # and those where the last column would have no room
BETWEEN = 2  # columns from one to the next
COLUMNS = ("name", "state", "iterations", "first", "last", "best", "rollouts", "disk", "age", "recipe", "logs")
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


# In the order in which they run in an iteration.
NODES = (
    *("sample", "admit", "rollout", "branch", "reward", "select", "retire", "rate", "refill"),
    *("advantage", "teach", "update", "publish", "record"),
)


def table(names: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", width: int | None = None) -> Table:
    """Make a table. Columns in MOST are cut at their width, and with `width` the last column where the row is full; the first is
    never cut.

    Where the row has no room for the last column's name, that column is left out. Print the table without cropping: what is too
    long for a terminal then continues on the next line.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    needed = [max([len(name), *(row[column].cell_len for row in cells)]) for column, name in enumerate(names)]
    widths = [min(most, MOST.get(name, most)) for name, most in zip(names, needed, strict=True)]
    if width is not None:
        room = width - BETWEEN * len(names) - 1
        if room - sum(widths[:-1]) < len(names[-1]):
            widths = [min(each, NARROW) if name in MOST else each for name, each in zip(names, widths, strict=True)]
        if room - sum(widths[:-1]) < len(names[-1]):
            return table(names[:-1], [row[:-1] for row in rows], title)
        widths[-1] = min(widths[-1], room - sum(widths[:-1]))
    # With enough total width, the table does not change the widths of its columns.
    total = sum(widths) + BETWEEN * len(names) + 1
    shown = Table(title=title or None, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), width=total)
    for name, columns in zip(names, widths, strict=True):
        shown.add_column(name, no_wrap=True, overflow="ellipsis", width=columns)
    for row in cells:
        shown.add_row(*row)
    return shown


def overview(rows: Sequence[RunRow], root: str) -> RenderableType:
    """Return one row for each; below the table, the reasons why runs failed or are damaged."""
    if not rows:
        return plain(f"there are no runs in {root} yet; `nbrl train RECIPE` makes one")
    now = time.time()
    reasons = [
        plain(f"{row.name}: {row.reason}", "red")
        for row in rows
        if row.state in ("failed", "damaged", "not readable") and row.reason
    ]
    return Group(table(COLUMNS, [_cells(row, now) for row in rows]), *reasons)


def _cells(row: RunRow, now: float) -> list[str]:
    state = f"running on {row.host}" if row.state == "running" else row.state
    iterations = "evaluation" if row.kind == "evaluations" else f"{row.iterations}/{'?' if row.planned is None else row.planned}"
    scores = [_score(value) for value in (row.first, row.last, row.best, row.rollouts)]
    age = row.age(now)
    return [row.name, state, iterations, *scores, size(row.bytes), "" if age is None else lasted(age), row.recipe, row.logs]


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def size(count: int | None) -> str:
    """Return bytes in powers of 1000; empty if unknown."""
    if count is None:
        return ""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def lasted(seconds: float) -> str:
    """Return a time in its largest unit."""
    return next((f"{seconds / length:.0f} {unit}" for length, unit in UNITS if seconds >= length), f"{seconds:.0f} s")
