"""Compares runs and evaluations: scores with intervals, paired differences, settings, cost, and how high each curve can rise."""

from collections.abc import Sequence
from typing import Literal

from nbrl.infra.closed import ClosedModel
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.compared import Evaluated, Setting, Side, differing, read
from nbrl.tasks.comparison.figures import Pair, RunCost, paired
from nbrl.tasks.comparison.sigmoid import LEAST, CurvePoint, Fit, fit
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.statistics import Estimate


class HeldOutScore(ClosedModel):
    """A held-out score after some updates, which are None for an evaluation of its own."""

    updates: int | None
    estimate: Estimate


class Compared(ClosedModel):
    """One side. `fitted` says which of its curves the sigmoid is of."""

    label: str
    kind: Literal["runs", "evaluations"]
    final: HeldOutScore
    best: HeldOutScore
    cost: RunCost
    rollouts: tuple[CurvePoint, ...]
    held_out: tuple[CurvePoint, ...]
    fitted: Literal["held-out", "rollouts", ""]
    fit: Fit | None


class Comparison(ClosedModel):
    """`pairs` are of the final evaluations: each side with the first. `settings` are those that differ."""

    sides: tuple[Compared, ...]
    pairs: tuple[Pair, ...]
    settings: tuple[Setting, ...]


def sides_of(storage: Storage, labels: Sequence[str]) -> list[Side]:
    """Return what is compared. Raises ConfigError for fewer than two, for one that is not there, and for two that are
    the same.
    """
    if len(labels) < 2:
        raise ConfigError("a comparison needs at least two runs or evaluations; name another one")
    seen: dict[object, str] = {}
    sides = []
    for label in labels:
        if label in seen.values():
            raise ConfigError(f"{label!r} cannot be compared with itself; name another run or evaluation")
        side = read(storage, label)
        if side.identity in seen:
            raise ConfigError(f"{seen[side.identity]!r} and {label!r} are the same evaluation; name another one")
        seen[side.identity] = label
        sides.append(side)
    return sides


def compare(sides: Sequence[Side], indifferent: bool = False) -> Comparison:
    """Compare them; with `indifferent` also by settings that decide nothing."""
    first, *rest = sides
    return Comparison(
        sides=tuple(map(_compared, sides)),
        pairs=tuple(paired((first.label, first.final.scores), (side.label, side.final.scores)) for side in rest),
        settings=tuple(differing(sides, indifferent)),
    )


def _compared(side: Side) -> Compared:
    fitted: Literal["held-out", "rollouts", ""] = ""
    if side.rollouts:
        fitted = "held-out" if len(side.held_out) >= LEAST else "rollouts"
    return Compared(
        label=side.label,
        kind=side.run.kind,
        final=_score(side.final),
        best=_score(side.best),
        cost=side.cost,
        rollouts=side.rollouts,
        held_out=side.held_out,
        fitted=fitted,
        fit=fit(side.held_out if fitted == "held-out" else side.rollouts) if fitted else None,
    )


def _score(evaluated: Evaluated) -> HeldOutScore:
    return HeldOutScore(updates=evaluated.updates, estimate=evaluated.estimate)
