"""All curves in one picture: success over the tokens that were sampled to get there."""

import io
from collections.abc import Sequence

import numpy as np

from nbrl.tasks.comparison.compare import Compared

COLOURS = ("#4477aa", "#cc3311", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#bbbbbb")


def draw(sides: Sequence[Compared]) -> bytes:
    """A PNG: rollouts as lines, held-out evaluations as points, a determined sigmoid dashed with its ceiling dotted.

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
    """A label that is neither mathematics nor hidden from the legend."""
    return label.replace("$", r"\$").lstrip("_")
