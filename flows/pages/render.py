"""The pages as HTML. What a model wrote is escaped, nothing on a page runs, and pictures are checked before they are shown."""

import base64
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from nbrl.agent.context.notepad import notes
from nbrl.agent.pictures import picture_kind
from nbrl.agent.trajectory import Step
from nbrl.flows.pages.reading import ShownStage, ShownTrajectory, TrajectoryRow
from nbrl.flows.pages.tokens import DIFFERS, ActionTokens, Decode, action, branches
from nbrl.tasks.reward.score import FACETS


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"picture": picture, "number": number}
    return made


def _page(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(version=version("nbrl"), **values)


def picture(data: bytes) -> str:
    """Return the address of a picture that is inside the page; empty for bytes that are none."""
    kind = picture_kind(data)
    return f"data:{kind};base64,{base64.b64encode(data).decode()}" if kind else ""


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def overview(names: Sequence[tuple[str, str]], root: str) -> str:
    return _page("overview.html", title="runs", names=names, root=root)


def run_page(kind: str, name: str, stages: Sequence[ShownStage], curve: bytes | None) -> str:
    return _page("run.html", title=name, kind=kind, name=name, stages=stages, curve=picture(curve or b""))


def stage_page(
    kind: str, name: str, stage: ShownStage, rows: Sequence[TrajectoryRow], chosen: dict[str, str], of_all: int
) -> str:
    return _page(
        "stage.html", title=f"{name}: {stage.title}", kind=kind, name=name, stage=stage, rows=rows, chosen=chosen, of_all=of_all
    )


def trajectory_page(kind: str, name: str, stage: ShownStage, found: ShownTrajectory, decode: Decode, alone: bool = False) -> str:
    """Return the page of one trajectory; `alone`, it has no links to others and can be sent as a file."""
    trajectory, rewards = found.trajectory, found.rewards or {}
    sampled = {node.step: action(node, decode, found.learner.get(node.step, ())) for node in trajectory.sampled()}
    earned = rewards.get("step_rewards") or []
    steps = []
    before = Step().notepad
    for place, step in enumerate(trajectory.steps):
        steps.append(
            {
                "step": step,
                "notes": notes(step.notepad) if step.notepad != before else "",
                "action": sampled.get(place, ActionTokens([])),
                "reward": earned[place] if place < len(earned) else None,
            }
        )
        before = step.notepad
    return _page(
        "trajectory.html",
        title=trajectory.id,
        kind=kind,
        name=name,
        stage=stage,
        found=found,
        trajectory=trajectory,
        steps=steps,
        facets=[(facet, rewards[facet]) for facet in FACETS if rewards.get(facet) is not None],
        own=rewards.get("own") or [],
        unscored=rewards.get("unscored") or "",
        differs=DIFFERS,
        branches=branches(trajectory),
        alone=alone,
    )


def failure_page(title: str, sentence: str) -> str:
    return _page("failure.html", title=title, sentence=sentence)
