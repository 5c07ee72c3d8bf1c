"""Renders a trajectory for a terminal: think, code, output, reward. Text of a model is never markup or terminal control."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax

from nbrl.agent.context.notepad import notes
from nbrl.agent.trajectory import Step, Trajectory
from nbrl.flows.display.terminal import plain

SHOWN_CHARS = 1_000


def render(key: str, trajectory: Trajectory, rewards: Mapping[str, Any] | None) -> RenderableType:
    """Render the complete trajectory; `rewards` is its row of a rewards table, if it was scored."""
    verdict = f"{trajectory.status}, {len(trajectory.steps)} steps, {trajectory.seconds:.1f} s"
    if rewards is not None:
        verdict += f", reward {rewards['total']:.3f}"
    parts: list[RenderableType] = [plain(f"{trajectory.id}   {key}", "dim"), task(trajectory.question)]
    earned, notes = (rewards or {}).get("step_rewards"), ""
    for index, step in enumerate(trajectory.steps):
        parts += [*action(index, step), *observation(step), *notepad(step, notes)]
        notes = step.notepad
        if earned is not None:
            parts.append(plain(f"reward {earned[index]:.3f}", "dim"))
    answer = plain(trajectory.answer if trajectory.answer is not None else "(none)")
    facets = [f"{name} {value:.3g}" for name, value in (rewards or {}).items() if isinstance(value, float) and name != "total"]
    lines = [answer, plain(verdict, "dim"), *([plain(", ".join(facets), "dim")] if facets else [])]
    parts.append(Panel(Group(*lines), title="answer", title_align="left", border_style="green"))
    if trajectory.failure:
        parts.append(plain(trajectory.failure, "red"))
    return Group(*parts)


def task(question: str) -> RenderableType:
    return Panel(plain(question, "bold"), title="task", title_align="left")


def action(index: int, step: Step) -> Iterator[RenderableType]:
    """The policy's action: think and code, or why it is malformed."""
    yield plain(f"step {index + 1}", "bold blue")
    yield plain(step.think, "italic")
    if step.malformed:
        yield plain(f"malformed: {step.malformed}", "red")
    elif step.kind == "cell":
        yield Syntax(plain(step.code).plain, "python", background_color="default", word_wrap=True)


def observation(step: Step) -> Iterator[RenderableType]:
    """The output of the action and its tool calls."""
    if not step.malformed:
        yield plain(step.observation or "(no output)", "cyan" if step.cell_status in ("ok", "none") else "red")
    for call in step.tool_calls:
        yield plain(f"  {call.name}({_short(call.arguments)}) → {_short(call.result)}", "dim")


def notepad(step: Step, before: str) -> Iterator[RenderableType]:
    """The notepad after a step, if it differs from `before`."""
    if step.notepad not in (before, Step().notepad) and (shown := notes(step.notepad)):
        yield Panel(plain(shown), title="notepad", title_align="left", border_style="dim")


def _short(recorded: str) -> str:
    """Shorten a recorded call, which may be long."""
    return recorded if len(recorded) <= SHOWN_CHARS else f"{recorded[:SHOWN_CHARS]}…"
