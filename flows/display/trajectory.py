"""Renders a trajectory for a terminal: think, code, output, reward. Text of a model is never markup or terminal control."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import pyarrow.compute as pc
from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table

from nbrl.agent.context.notepad import notes
from nbrl.agent.settings import AgentSettings
from nbrl.agent.trajectory import Step, Trajectory
from nbrl.flows.display.listing import files, line, places
from nbrl.flows.display.terminal import plain
from nbrl.flows.display.wanted import Wanted
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import place_of
from nbrl.tasks.layout.stages import rewards_of
from nbrl.tasks.runs.trajectories import read_trajectories, trajectories_of

SHOWN_CHARS = 1_000
NARROWEST = 26  # columns of a trajectory, unless its id needs more
LINES, CHARACTERS = 6, 400  # of the first action
INDENT = 2  # columns of children below what called them
LABELS, GAP = 13, 2  # columns of the names of rows, and between two trajectories


def render(title: str, trajectory: Trajectory, rewards: Mapping[str, Any] | None, unfold: bool = False) -> RenderableType:
    """Render the complete trajectory of the stage with this title; `rewards` is its row of a rewards table, if it was scored.

    Each child is a line below the step that called it, and with `unfold` all that it did.
    """
    verdict = f"{trajectory.status}, {len(trajectory.steps)} steps, {trajectory.seconds:.1f} s"
    if rewards is not None:
        verdict += f", reward {rewards['total']:.3f}"
    parts: list[RenderableType] = [plain(f"{trajectory.id}   {title}", "dim"), task(trajectory.question)]
    earned, notes = (rewards or {}).get("step_rewards"), ""
    for index, step in enumerate(trajectory.steps):
        parts += [*action(index, step), *observation(step), *notepad(step, notes)]
        notes = step.notepad
        if earned is not None:
            parts.append(plain(f"reward {earned[index]:.3f}", "dim"))
        parts += children(trajectory, index, unfold)
    answer = plain(trajectory.answer if trajectory.answer is not None else "(none)")
    facets = [f"{name} {value:.3g}" for name, value in (rewards or {}).items() if isinstance(value, float) and name != "total"]
    lines = [answer, plain(verdict, "dim"), *([plain(", ".join(facets), "dim")] if facets else [])]
    parts.append(Panel(Group(*lines), title="answer", title_align="left", border_style="green"))
    if trajectory.failure:
        parts.append(plain(trajectory.failure, "red"))
    return Group(*parts)


def children(trajectory: Trajectory, caller: int, unfold: bool) -> Iterator[RenderableType]:
    """Yield the children that the cell of step `caller` called: a line for each, or all that they did."""
    for place, first in trajectory.called_by(caller):
        child = trajectory.children[place]
        steps = f"{len(child.steps)} step{'s' if len(child.steps) != 1 else ''}"
        answer = "(none)" if child.answer is None else line(child.answer)
        head = f"{child.kind}, {child.status}, {steps}: {_short(line(child.task))} → {_short(answer)}"
        yield Padding(plain(head, "magenta"), (0, 0, 0, INDENT))
        for index, step in enumerate(child.steps if unfold else ()):
            own = [*action(index, step), *observation(step), *notepad(step, Step().notepad)]
            below = children(trajectory, first + index, unfold)
            yield Padding(Group(*own, *below), (0, 0, 0, 2 * INDENT))


def task(question: str) -> RenderableType:
    return Panel(plain(question, "bold"), title="task", title_align="left")


def action(index: int, step: Step) -> Iterator[RenderableType]:
    """Yield the policy's action: think and code, or why it is malformed; of a reply, the request too."""
    yield plain(f"step {index + 1}", "bold blue")
    if step.kind == "reply":
        yield plain(step.observation, "cyan")
    yield plain(step.think, "italic")
    if step.malformed:
        yield plain(f"malformed: {step.malformed}", "red")
    elif step.kind == "cell":
        yield Syntax(plain(step.code).plain, "python", background_color="default", word_wrap=True)
    elif step.kind == "reply":
        yield plain(step.code)


def observation(step: Step) -> Iterator[RenderableType]:
    """Yield the output of the action and its tool calls."""
    if not step.malformed and step.kind != "reply":
        yield plain(step.observation or "(no output)", "cyan" if step.cell_status in ("ok", "none") else "red")
    for call in step.tool_calls:
        yield plain(f"  {call.name}({_short(call.arguments)}) → {_short(call.result)}", "dim")


def notepad(step: Step, before: str) -> Iterator[RenderableType]:
    """Yield the notepad after a step, if it differs from `before`."""
    if step.notepad not in (before, Step().notepad) and (shown := notes(step.notepad)):
        yield Panel(plain(shown), title="notepad", title_align="left", border_style="dim")


def _short(recorded: str) -> str:
    """Shorten a recorded call, which may be long."""
    return recorded if len(recorded) <= SHOWN_CHARS else f"{recorded[:SHOWN_CHARS]}…"


class EpisodeSpinner:
    """An nbrl.agent.kernel.Watcher and a context manager, which ends the spinner. Without a terminal there is no spinner."""

    def __init__(self, console: Console, question: str, settings: AgentSettings) -> None:
        self._console, self._question, self._settings = console, question, settings
        self._spinner = console.status("connecting")
        self._budget = self._notes = ""
        self._begun = False

    def __enter__(self) -> Self:
        self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._spinner.stop()

    def asked(self, index: int, tokens: int) -> None:
        if not self._begun:  # an episode that cannot begin prints only an error
            self._console.print(task(self._question))
            self._begun = True
        left = max(0, self._settings.context_tokens - tokens)
        self._budget = f"step {index + 1} of {self._settings.max_steps}, {left} tokens left"
        self._spinner.update(f"{self._budget}: the model thinks")

    def acted(self, index: int, step: Step) -> None:
        for part in action(index, step):
            self._console.print(part)
        self._spinner.update(f"{self._budget}: the cell runs")

    def observed(self, index: int, step: Step) -> None:
        for part in (*observation(step), *notepad(step, self._notes)):
            self._console.print(part)
        self._notes = step.notepad


def side_by_side(storage: Storage, run: str, group: str, width: int, wanted: Wanted) -> RenderableType:
    """Return the newest group with this id, or that of the trajectory with this id. Raises ConfigError if there is none."""
    keys = files(storage, run)
    groups: dict[str, list[Trajectory]] = {}
    for key in places(run, keys, wanted):
        rows = read_trajectories(storage, key)
        names = dict(zip(rows["id"].to_pylist(), rows["group"].to_pylist(), strict=True))
        if group not in names.values():
            group = names.get(group, group)
        if group in names.values():
            members = trajectories_of(storage, key, rows.filter(pc.equal(rows["group"], group)))
            groups[key] = sorted(members, key=lambda each: each.sample)
    if not groups:
        lists = f"nbrl show {run}{storage.settings.option}"
        raise ConfigError(f"{run!r} has no group or trajectory {group!r} there; `{lists}` lists the trajectories")
    (key, trajectories), *others = groups.items()
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
    """Return one column of the same width for each; ids are never cut."""
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
    """Return the beginning of the first action."""
    if not trajectory.steps:
        return ""
    step = trajectory.steps[0]
    lines = [each for each in (*step.think.splitlines(), *step.code.splitlines(), step.malformed) if each.strip()]
    return "\n".join(lines[:LINES])[:CHARACTERS]
