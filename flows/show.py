"""Finds trajectories among the artifacts of runs and evaluations."""

import difflib
from typing import Any

import pyarrow.compute as pc
from rich.box import SIMPLE
from rich.table import Table

from agent.trajectory import Trajectory, from_table
from flows.terminal import plain
from infra.errors import StorageError
from infra.storage import Storage
from tasks.errors import ConfigError


def files(storage: Storage, run: str) -> list[str]:
    """Every compacted trajectories file of a run or of an evaluation."""
    found = [
        key for key in storage.list(f"runs/{run}") + storage.list(f"evaluations/{run}") if key.endswith("/trajectories.parquet")
    ]
    if not found:
        known = sorted({key.split("/")[1] for place in ("runs", "evaluations") for key in storage.list(place)})
        if run in known:
            raise ConfigError(f"{run!r} in {storage.settings.root} has no finished trajectories yet")
        near = difflib.get_close_matches(run, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none yet'}; RUN/TRAJECTORY names one."
        raise ConfigError(f"there are no trajectories of a run {run!r} in {storage.settings.root}; {hint}")
    return found


def find(storage: Storage, run: str, trajectory: str) -> list[tuple[str, Trajectory, dict[str, Any] | None]]:
    """All trajectories with this id (a question is asked in several evaluations), each with its file and its row of rewards."""
    found = []
    for key in files(storage, run):
        table = storage.read_table(key)
        for match in from_table(table.filter(pc.equal(table["id"], trajectory))):
            found.append((key, match, _rewards(storage, key, trajectory)))
    if not found:
        raise ConfigError(f"run {run!r} has no trajectory {trajectory!r}; `nbrl show {run}` lists them")
    return found


def _rewards(storage: Storage, key: str, trajectory: str) -> dict[str, Any] | None:
    try:
        rewards = storage.read_table(key.replace("trajectories.parquet", "rewards.parquet"))
    except StorageError:
        return None
    rows: list[dict[str, Any]] = rewards.filter(pc.equal(rewards["trajectory"], trajectory)).to_pylist()
    return rows[0] if rows else None


def listing(storage: Storage, run: str, limit: int) -> Table:
    """The newest trajectories of a run, one a row."""
    rows: list[tuple[str, str, str, str, str]] = []
    for key in reversed(files(storage, run)):
        place = key.split("/")[2:-1]
        where = f"{place[0][:4]} {int(place[1])}" if place else ""
        for row in storage.read_table(key).select(["id", "status", "answer", "question"]).to_pylist():
            rows.append((row["id"], where, row["status"], str(row["answer"]), row["question"]))
        if len(rows) >= limit:
            break
    table = Table(title=run, title_justify="left", box=SIMPLE)
    for name, column in zip(("trajectory", "where", "status", "answer", "question"), range(5), strict=True):
        needed = min((24, 8, 11, 12, 8)[column], max(len(row[column]) for row in rows[:limit]))
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=needed)
    for row in rows[:limit]:
        table.add_row(*(plain(cell) for cell in row))
    return table
