"""A comparison in the terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from nbrl.flows.display.tables import NODES, table
from nbrl.flows.display.terminal import plain
from nbrl.tasks.comparison.compare import Comparison
from nbrl.tasks.comparison.figures import Pair
from nbrl.tasks.comparison.scored import HeldOutScore, Scored
from nbrl.tasks.evaluation.statistics import about_intervals

COSTS = (*NODES, "iteration", "evaluate")
SHOWN = 40  # characters of a setting's value


def render(found: Comparison) -> RenderableType:
    """Return scores, differences, ceilings, settings and costs; one below the other."""
    asked = min(side.final.estimate.questions for side in found.sides)
    parts: list[RenderableType] = [_scores(found.sides), plain(about_intervals(asked), "dim"), plain("")]
    parts += [plain(_pair(pair)) for pair in found.pairs]
    parts += [plain(""), *(plain(line) for line in _ceilings(found.sides)), plain("")]
    labels = [side.label for side in found.sides]
    if found.settings:
        rows = [[setting.key, "yes" if setting.decides else "no", *map(_value, setting.values)] for setting in found.settings]
        parts.append(table(("setting", "decides", *labels), rows))
    else:
        parts += [plain("no setting differs"), plain("")]
    parts.append(table(("cost", *labels), list(_costs(found.sides))))
    return Group(*parts)


def _scores(sides: Sequence[Scored]) -> RenderableType:
    rows = [[side.label, str(side.final.estimate.questions), _score(side.final), _score(side.best)] for side in sides]
    return table(("held-out success", "questions", "final", "best"), rows)


def _score(score: HeldOutScore) -> str:
    return str(score.estimate) if score.updates is None else f"{score.estimate} after {score.updates} updates"


def _pair(pair: Pair) -> str:
    if pair.difference is None:
        return f"{pair.second} and {pair.first} have no question in common, so nothing is compared question by question"
    rest = ", ".join(
        f"{count} of {name} alone" for name, count in zip((pair.first, pair.second), pair.other, strict=True) if count
    )
    return f"{pair.second} − {pair.first}: {pair.difference} on {pair.common} common questions{f' ({rest})' if rest else ''}"


def _ceilings(sides: Sequence[Scored]) -> Iterator[str]:
    for side in sides:
        if side.fit is not None:
            yield f"{side.label}: ceiling by the sigmoid of its {side.fitted} ({side.fit.points} points): {side.fit}"


def _value(value: str | None) -> str:
    if value is None:
        return "–"
    return value if len(value) <= SHOWN else f"{value[:SHOWN]}…"


def _costs(sides: Sequence[Scored]) -> Iterator[list[str]]:
    costs = [side.cost for side in sides]
    yield ["iterations", *("–" if cost.iterations is None else str(cost.iterations) for cost in costs)]
    yield ["trajectories", *(str(cost.trajectories) for cost in costs)]
    yield ["sampled tokens", *(str(cost.sampled_tokens) for cost in costs)]
    for words, spent in (
        ("seconds", [cost.seconds for cost in costs]),
        ("processor-s", [cost.processor_seconds for cost in costs]),
        ("GPU-s", [cost.gpu_seconds for cost in costs]),
    ):
        for node in sorted({node for each in spent for node in each}, key=_place):
            yield [f"{words} {node}", *(f"{each[node]:.1f}" if node in each else "–" for each in spent)]


def _place(node: str) -> tuple[int, str]:
    return (COSTS.index(node) if node in COSTS else len(COSTS)), node
