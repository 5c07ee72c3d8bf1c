"""Finds a trajectory and renders it for a terminal: think, code, output, notepad, reward."""

import difflib
from collections.abc import Iterator

import pyarrow.compute as pc
from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from agent.trajectory import Step, Trajectory, from_table
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
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none yet'}."
        raise ConfigError(f"there are no trajectories of a run {run!r} in {storage.settings.root}; {hint}")
    return found


def find(storage: Storage, run: str, trajectory: str) -> list[tuple[str, Trajectory, float | None]]:
    """All trajectories with this id (a question is asked in several evaluations), each with its file and its total reward."""
    found = []
    for key in files(storage, run):
        table = storage.read_table(key)
        for match in from_table(table.filter(pc.equal(table["id"], trajectory))):
            found.append((key, match, _reward(storage, key, trajectory)))
    if not found:
        raise ConfigError(f"run {run!r} has no trajectory {trajectory!r}; `nbrl show {run}` lists them")
    return found


def _reward(storage: Storage, key: str, trajectory: str) -> float | None:
    try:
        rewards = storage.read_table(key.replace("trajectories.parquet", "rewards.parquet"))
    except StorageError:
        return None
    rows = rewards.filter(pc.equal(rewards["trajectory"], trajectory)).to_pylist()
    return rows[0]["total"] if rows else None


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
        table.add_row(*(_plain(cell) for cell in row))
    return table


def _plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup, and nothing that a terminal would obey."""
    return Text("".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text), style)


def render(key: str, trajectory: Trajectory, reward: float | None) -> RenderableType:
    """The whole trajectory. Model text is never read as markup."""
    head = _plain(trajectory.question, "bold")
    verdict = f"{trajectory.status}, {len(trajectory.steps)} steps, {trajectory.seconds:.1f} s"
    if reward is not None:
        verdict += f", reward {reward:.3f}"
    parts: list[RenderableType] = [_plain(f"{trajectory.id}   {key}", "dim"), Panel(head, title="task", title_align="left")]
    for number, step in enumerate(trajectory.steps):
        parts.extend(_step(number, step))
    answer = _plain(trajectory.answer if trajectory.answer is not None else "(none)")
    parts.append(Panel(Group(answer, _plain(verdict, "dim")), title="answer", title_align="left", border_style="green"))
    if trajectory.failure:
        parts.append(_plain(trajectory.failure, "red"))
    return Group(*parts)


def _step(number: int, step: Step) -> Iterator[RenderableType]:
    yield _plain(f"step {number + 1}", "bold blue")
    yield _plain(step.think, "italic")
    if step.malformed:
        yield _plain(f"malformed: {step.malformed}", "red")
        return
    yield Syntax(_plain(step.code).plain, "python", background_color="default", word_wrap=True)
    yield _plain(step.observation or "(no output)", "red" if step.cell_status != "ok" else "cyan")
    for call in step.tool_calls:
        yield _plain(f"  {call.name}({call.arguments}) → {call.result}", "dim")
