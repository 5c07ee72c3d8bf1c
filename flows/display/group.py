"""The trajectories of one question side by side."""

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table

from nbrl.agent.trajectory import Trajectory
from nbrl.flows.display.listing import Wanted, files, line, places
from nbrl.flows.display.progress import plain
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import place_of
from nbrl.tasks.layout.stages import rewards_of
from nbrl.tasks.runs.results import read_trajectories, trajectories_of

NARROWEST = 26  # columns of a trajectory, unless its id needs more
LINES, CHARACTERS = 6, 400  # of the first action
LABELS, GAP = 13, 2  # columns of the names of rows, and between two trajectories


def side_by_side(storage: Storage, run: str, group: str, width: int, wanted: Wanted) -> RenderableType:
    """The newest group with this id, or that of the trajectory with this id. Raises ConfigError if there is none."""
    keys = files(storage, run)
    found: dict[str, list[Trajectory]] = {}
    for key in places(run, keys, wanted):
        rows = read_trajectories(storage, key)
        names = dict(zip(rows["id"].to_pylist(), rows["group"].to_pylist(), strict=True))
        if group not in names.values():
            group = names.get(group, group)
        if group in names.values():
            members = trajectories_of(storage, key, rows.filter(pc.equal(rows["group"], group)))
            found[key] = sorted(members, key=lambda each: each.sample)
    if not found:
        raise ConfigError(f"{run!r} has no group or trajectory {group!r} there; `nbrl show {run}` lists the trajectories")
    (key, trajectories), *others = found.items()
    scored = rewards_of(key, keys)
    rewards = {row["trajectory"]: row for row in storage.read_table(scored).to_pylist()} if scored else {}
    first = trajectories[0]
    parts: list[RenderableType] = [plain(f"{first.group}   {place_of(key)}", "dim"), plain(first.question, "bold")]
    columns = max(NARROWEST, *(len(each.id) for each in trajectories))
    for some in _batches(trajectories, max(1, (width - LABELS) // (columns + GAP))):
        parts.append(_table(some, rewards, columns))
    if others:
        also = ", ".join(place_of(other) for other, _ in others)
        parts.append(plain(f"also in {also}: --iteration N shows an iteration's, RUN@N the evaluation's after N updates", "dim"))
    return Group(*parts)


def _batches(trajectories: Sequence[Trajectory], count: int) -> list[Sequence[Trajectory]]:
    return [trajectories[start : start + count] for start in range(0, len(trajectories), count)]


def _table(trajectories: Sequence[Trajectory], rewards: dict[str, dict[str, Any]], columns: int) -> Table:
    """One column of the same width for each; ids are never cut."""
    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0), width=LABELS + (columns + GAP) * len(trajectories))
    shown.add_column("")
    for each in trajectories:
        shown.add_column(plain(each.id), width=columns, overflow="fold")
    cells = [_cells(each, rewards.get(each.id)) for each in trajectories]
    for name in cells[0]:
        shown.add_row(name, *(plain(each[name]) for each in cells))
    return shown


def _cells(trajectory: Trajectory, rewards: dict[str, Any] | None) -> dict[str, str]:
    return {
        "answer": "(none)" if trajectory.answer is None else line(trajectory.answer),
        "reward": f"{rewards['total']:.3f}" if rewards is not None else "",
        "success": f"{rewards['success']:g}" if rewards is not None else "",
        "steps": str(len(trajectory.steps)),
        "status": str(trajectory.status),
        "first lines": _first(trajectory),
    }


def _first(trajectory: Trajectory) -> str:
    """The beginning of the first action."""
    if not trajectory.steps:
        return ""
    step = trajectory.steps[0]
    lines = [each for each in (*step.think.splitlines(), *step.code.splitlines(), step.malformed) if each.strip()]
    return "\n".join(lines[:LINES])[:CHARACTERS]
