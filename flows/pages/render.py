"""The pages as HTML. What a model wrote is escaped, no page holds a script, and pictures are checked before they are shown."""

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from nbrl.agent.pictures import picture_kind
from nbrl.flows.display.tables import lasted, size
from nbrl.flows.pages.copies import CopiedQuestion
from nbrl.flows.pages.curves import LearningCurve, picture_of
from nbrl.flows.pages.lists import COLUMNS, ChosenList, ListPlace, choices, of_page, pages_of
from nbrl.flows.pages.reading import RunReading, ShownStage, ShownTrajectory, TrajectoryRow
from nbrl.flows.pages.steps import steps_of
from nbrl.flows.pages.text import block
from nbrl.flows.pages.tokens import DIFFERS, Decode, action, branches
from nbrl.tasks.comparison.overview import RunRow
from nbrl.tasks.reward.score import FACETS

HERE = Path(__file__).parent / "templates"
SCRIPT = (HERE / "pages.js").read_text()
STYLE = (HERE / "pages.css").read_text()
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
OFFERED = 200  # stages to choose from in a list, the newest
SOON_S, LATER_S = 3, 15  # between two looks at a page that changes: while a run goes on, and while one may begin


class Beside(NamedTuple):
    """What is shown beside a trajectory: its place in the chosen list with the ids before and after it, the others of its
    group, the same question in the run, and in other runs if that was asked for. `live` asks for changes.
    """

    chosen: ChosenList
    place: ListPlace
    siblings: Sequence[TrajectoryRow]
    copies: Sequence[CopiedQuestion]
    elsewhere: tuple[list[CopiedQuestion], int, int] | None
    live: bool


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"picture": picture, "number": number, "mark": mark}
    return made


def _page(template: str, live: int = 0, alone: bool = False, **values: Any) -> str:
    """Return a page. It is asked for again every `live` seconds, never if that is 0; `alone`, it needs no server."""
    own = {"version": version("nbrl"), "style": Markup(STYLE), "style_hash": STYLE_HASH, "live": live, "alone": alone}
    return _environment().get_template(template).render(**own, **values)


def picture(data: bytes) -> str:
    """Return the address of a picture that is inside the page; empty for bytes that are none."""
    kind = picture_kind(data)
    return f"data:{kind};base64,{base64.b64encode(data).decode()}" if kind else ""


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def mark(success: float | None) -> Markup:
    """Return whether an answer was right as a sign with a word for readers of screens."""
    if success is None:
        return Markup('<span class="mark soft" title="not scored">–</span>')
    if success >= 1:
        return Markup('<span class="mark good" title="right">✓<i> right</i></span>')
    return Markup('<span class="mark bad" title="wrong">✗<i> wrong</i></span>')


def overview_page(rows: Sequence[RunRow], curves: Mapping[str, LearningCurve], page: int, root: str) -> str:
    now = time.time()
    shown = [
        {
            "row": row,
            "picture": picture_of(curves.get(row.name, LearningCurve()), 150, 36) if row.kind == "runs" else None,
            "age": "" if (age := row.age(now)) is None else lasted(age),
            "size": size(row.bytes),
        }
        for row in of_page(rows, page)
    ]
    live = SOON_S if any(row.state == "running" for row in rows) else LATER_S
    return _page("overview.html", live, title="runs", shown=shown, count=len(rows), root=root, page=page, pages=pages_of(rows))


def run_page(row: RunRow, stages: Sequence[ShownStage], page: int, curve: LearningCurve, scores: Mapping[int, float]) -> str:
    """Return the page of a run; `scores` are the successes of the iterations on this page of its stages."""
    shown = []
    for stage in of_page(stages, page):
        kind, _, count = stage.slug.partition("-")
        held_out = curve.held_out.get(int(count), (row.last, None, None)) if kind == "evaluations" else None
        shown.append({"stage": stage, "score": scores.get(int(count)) if held_out is None else held_out[0], "held_out": held_out})
    return _page(
        "run.html",
        SOON_S if row.state == "running" else 0,
        title=row.name,
        row=row,
        age="" if (age := row.age(time.time())) is None else lasted(age),
        size=size(row.bytes),
        shown=shown,
        page=page,
        pages=pages_of(stages),
        picture=picture_of(curve, 720, 240, 40, 28),
    )


def stage_page(
    run: RunReading,
    stage: ShownStage,
    stages: Sequence[ShownStage],
    rows: Sequence[TrajectoryRow],
    chosen: ChosenList,
    live: bool,
) -> str:
    found = chosen.rows(rows)
    scored = [row.success for row in found if row.success is not None]
    return _page(
        "stage.html",
        SOON_S if live else 0,
        title=f"{run.name}: {stage.title}",
        run=run,
        stage=stage,
        stages=[each for place, each in enumerate(stages) if place < OFFERED or each == stage],
        rows=of_page(found, chosen.page),
        count=len(found),
        of_all=len(rows),
        success=sum(scored) / len(scored) if scored else None,
        chosen=chosen,
        choices=choices(rows),
        columns=list(COLUMNS),
        pages=pages_of(found),
    )


def trajectory_page(kind: str, name: str, found: ShownTrajectory, decode: Decode, beside: Beside) -> str:
    """Return the page of one trajectory among others."""
    shown = _shown(found, decode)
    live = SOON_S if beside.live else 0
    return _page("trajectory.html", live, title=found.trajectory.id, kind=kind, name=name, shown=shown, beside=beside)


def file_page(name: str, found: Sequence[ShownTrajectory], decode: Decode) -> str:
    """Return all of these trajectories as one page, which can be sent as a file."""
    shown = [_shown(each, decode) for each in found]
    return _page("file.html", alone=True, title=found[0].trajectory.id, name=name, shown=shown)


def _shown(found: ShownTrajectory, decode: Decode) -> dict[str, Any]:
    """Return what the template of a trajectory needs."""
    trajectory, rewards = found.trajectory, found.rewards or {}
    sampled = {node.step: action(node, decode, found.learner.get(node.step, ())) for node in trajectory.sampled()}
    return {
        "found": found,
        "trajectory": trajectory,
        "question": block("question", "question", trajectory.question),
        "success": rewards.get("success"),
        "steps": steps_of(trajectory, trajectory.steps, 0, rewards.get("step_rewards") or [], rewards, sampled),
        "tokens": sum(len(node.token_ids) for node in trajectory.sampled()),
        "facets": [(facet, rewards[facet]) for facet in FACETS if rewards.get(facet) is not None],
        "own": rewards.get("own") or [],
        "unscored": rewards.get("unscored") or "",
        "differs": DIFFERS,
        "branches": branches(trajectory),
    }


def failure_page(title: str, sentence: str) -> str:
    return _page("failure.html", title=title, sentence=sentence)
