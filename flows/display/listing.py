"""Finds trajectories among the artifacts of runs and evaluations."""

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
from rich.box import SIMPLE
from rich.console import RenderableType
from rich.table import Table

from nbrl.agent.trajectory import Trajectory, from_table
from nbrl.flows.display.terminal import plain
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.layout import EVALUATIONS, RUNS, EvaluationLayout, RunLayout, is_trajectories, name_of, place_of, rewards_of
from nbrl.tasks.runs.history import finished_iterations

MOST = {"answer": 20}  # widths at which columns are cut


def files(storage: Storage, run: str) -> list[str]:
    """All keys of a run or evaluation that has trajectories. Raises ConfigError if there is none."""
    keys = storage.list(RunLayout(run).folder) + storage.list(EvaluationLayout(run).folder)
    if not any(map(is_trajectories, keys)):
        names = sorted({name_of(key) for place in (RUNS, EVALUATIONS) for key in storage.list(place)})
        if run in names:
            raise ConfigError(f"{run!r} in {storage.settings.root} has no finished trajectories yet")
        hint = did_you_mean(run, names)
        raise ConfigError(f"there are no trajectories of a run {run!r} in {storage.settings.root}; {hint}")
    return keys


def find(storage: Storage, run: str, trajectory: str) -> list[tuple[str, Trajectory, dict[str, Any] | None]]:
    """All trajectories with this id (evaluations repeat questions), each with its file and its row of rewards."""
    matches = []
    keys = files(storage, run)
    for key in filter(is_trajectories, keys):
        table = storage.read_table(key)
        for match in from_table(table.filter(pc.equal(table["id"], trajectory))):
            matches.append((key, match, _rewards(storage, rewards_of(key, keys), trajectory)))
    if not matches:
        raise ConfigError(f"run {run!r} has no trajectory {trajectory!r}; `nbrl show {run}` lists them")
    return matches


def _rewards(storage: Storage, key: str | None, trajectory: str) -> dict[str, Any] | None:
    if key is None:
        return None
    rewards = storage.read_table(key)
    rows: list[dict[str, Any]] = rewards.filter(pc.equal(rewards["trajectory"], trajectory)).to_pylist()
    return rows[0] if rows else None


def listing(storage: Storage, run: str, limit: int, width: int = 80) -> Table:
    """The newest trajectories of a run, one per row of `width` characters, or more if an id needs them."""
    rows: list[tuple[str, str, str, str, str]] = []
    for key in reversed(list(filter(is_trajectories, files(storage, run)))):
        where = place_of(key)
        for row in storage.read_table(key).select(["id", "status", "answer", "question"]).to_pylist():
            rows.append((row["id"], where, row["status"], _line(str(row["answer"])), _line(row["question"])))
        if len(rows) >= limit:
            break
    return _table(("trajectory", "where", "status", "answer", "question"), rows[:limit], run, width)


def _line(text: str) -> str:
    return " ".join(text.split())


def overview(storage: Storage) -> RenderableType:
    """All runs and evaluations, one per row: name, number of finished iterations, and whether it is complete."""
    rows = [
        (name, "run", *_progress(storage, name, files))
        for name, files in _by_name(storage, RUNS)
        if RunLayout(name).identity in files
    ]
    for name, files in _by_name(storage, EVALUATIONS):
        rows.append((name, "evaluation", "", "finished" if EvaluationLayout(name).round.rewards in files else "unfinished"))
    if not rows:
        return plain(f"there are no runs in {storage.settings.root} yet; `nbrl train RECIPE` makes one")
    return _table(("name", "kind", "iterations", "state"), rows)


def _by_name(storage: Storage, place: str) -> list[tuple[str, set[str]]]:
    """The runs or evaluations below `place`, each with the keys of its files."""
    by_name: dict[str, set[str]] = {}
    for key in storage.list(place):
        by_name.setdefault(name_of(key), set()).add(key)
    return sorted(by_name.items())


def _progress(storage: Storage, run: str, files: set[str]) -> tuple[str, str]:
    """Number of finished iterations of a run, and its state. A run continued after its end has a summary of fewer iterations."""
    layout = RunLayout(run)
    done = finished_iterations(files, layout)
    summary = storage.read_json(layout.summary) if layout.summary in files else {"iterations": -1}
    if summary["iterations"] != done:
        return str(done), "unfinished"
    if summary.get("stalled"):
        return str(done), "learned nothing" if summary["skipped_in_row"] == done else "ended early"
    return str(done), "finished"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", width: int | None = None) -> Table:
    """Columns in MOST are cut at their width, and with `width` the last column where the row is full; the first is never cut.

    Print the table without cropping: what is too long for a terminal then continues on the next line.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    needed = [max([len(name), *(row[column].cell_len for row in cells)]) for column, name in enumerate(names)]
    widths = [min(most, MOST.get(name, most)) for name, most in zip(names, needed, strict=True)]
    between = 3 * len(names) + 1
    if width is not None:
        widths[-1] = max(len(names[-1]), min(widths[-1], width - between - sum(widths[:-1])))
    # With enough total width, the table does not change the widths of its columns.
    table = Table(title=title or None, title_justify="left", box=SIMPLE, width=sum(widths) + between)
    for name, columns in zip(names, widths, strict=True):
        table.add_column(name, no_wrap=True, overflow="ellipsis", width=columns)
    for row in cells:
        table.add_row(*row)
    return table
