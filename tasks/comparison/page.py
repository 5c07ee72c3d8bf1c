"""The address of MLflow's page that compares the same runs."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import shortened
from nbrl.infra.home import Home
from nbrl.infra.tracking import Tracking
from nbrl.infra.tracking_address import SERVERS, check_reachable, missing_database
from nbrl.tasks.comparison.scored import Scored, Side
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.tracking.evaluations import EVALUATION
from nbrl.tasks.tracking.parameters import identity

COLOURS = ("#4477aa", "#cc3311", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#bbbbbb")


class ComparisonPage(ClosedModel):
    """`address` is empty where there is none, and `why` says why. It begins with `/` where `nbrl ui` says the rest of it."""

    address: str = ""
    why: str = ""


def page(sides: Sequence[Side]) -> ComparisonPage:
    """Return the page of all sides that MLflow has. Raises nothing: the comparison does not depend on MLflow."""
    try:
        return _page(sides)
    except Exception as error:
        return ComparisonPage(why=f"MLflow cannot be asked: {shortened(error)}")


def _page(sides: Sequence[Side]) -> ComparisonPage:
    configs = [side.config for side in sides]
    places = {config.tracking.uri or str(Path(config.home, "mlflow").absolute()) for config in configs}
    if len(places) != 1:
        return ComparisonPage(why="not all of them are in one MLflow")
    config, (place,) = configs[0], places
    if (missing := missing_database(config.tracking.uri, Home(config.home))) is not None:
        return ComparisonPage(why=f"there is no MLflow database in {missing.parent}")
    check_reachable(place)
    tracking = Tracking(config.tracking, Home(config.home))
    experiment = tracking.client.get_experiment_by_name(config.tracking.experiment)
    ids = list(dict.fromkeys(_id(tracking, side) for side in sides)) if experiment is not None else [""]
    if experiment is None or "" in ids:
        return ComparisonPage(why="MLflow does not have all of them; `nbrl track NAME` delivers one")
    if len(ids) < 2:
        return ComparisonPage(why="they are one run in MLflow")
    both = f"runs={quote(_list(ids))}&experiments={quote(_list([experiment.experiment_id]))}"
    query = f"{both}&workflowType=machine_learning"  # the mode for training: MLflow opens in that for agents
    return ComparisonPage(address=f"{place.rstrip('/') if place.startswith(SERVERS) else ''}/#/compare-runs?{query}")


def _id(tracking: Tracking, side: Side) -> str:
    if side.run.kind == RUNS:
        return tracking.id_of(side.run.name, identity(side.run))
    return tracking.id_of(side.run.name, EVALUATION)


def _list(names: Sequence[str]) -> str:
    return json.dumps(list(names), separators=(",", ":"))


def draw(sides: Sequence[Scored]) -> bytes:
    """Return a PNG: rollouts as lines, held-out evaluations as points, a determined sigmoid dashed with its ceiling dotted.

    An evaluation of its own, which has no curve, is a horizontal line.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, side in enumerate(sides):
        colour = COLOURS[number % len(COLOURS)]
        if not side.held_out:
            value = side.final.estimate.value
            axes.axhline(value, color=colour, linestyle="-.", label=_text(f"{side.label}: evaluation, {value:.3f}"))
            continue
        if side.rollouts:
            tokens, success = zip(*side.rollouts, strict=True)
            axes.plot(tokens, success, color=colour, alpha=0.6, linewidth=1, label=_text(f"{side.label}: rollouts"))
        tokens, success = zip(*side.held_out, strict=True)
        axes.plot(tokens, success, "o", color=colour, label=_text(f"{side.label}: held-out"))
        if side.fit is not None and side.fit.is_determined and side.fit.sigmoid is not None:
            longest = max(point.tokens for point in (*side.rollouts, *side.held_out))
            along = np.linspace(0, longest, 200)
            label = _text(f"{side.label}: sigmoid of its {side.fitted}, ceiling {side.fit}")
            axes.plot(along, side.fit.sigmoid.at(along), "--", color=colour, linewidth=1.5, label=label)
            axes.axhline(side.fit.sigmoid.ceiling, color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="cumulative sampled tokens", ylabel="success", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _text(label: str) -> str:
    """Return a label that is neither mathematics nor hidden from the legend."""
    return label.replace("$", r"\$").lstrip("_")
