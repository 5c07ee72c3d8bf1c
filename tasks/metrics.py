"""Metrics, each with the reduction of several values to one."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator

Reduction = Literal["sum", "mean", "max", "first", "last"]


class Metric(NamedTuple):
    """`reduction` says how to combine several values, such as those of two rounds or of two optimiser steps."""

    value: float
    reduction: Reduction = "mean"


def _with_reduction(value: object) -> object:
    return Metric(value) if isinstance(value, int | float) else value


Metrics = dict[str, Annotated[Metric, BeforeValidator(_with_reduction)]]  # in JSON a bare number is a mean


def of(values: Mapping[str, float], reduction: Reduction) -> dict[str, Metric]:
    """Return all values as metrics with this reduction."""
    return {name: Metric(value, reduction) for name, value in values.items()}


def reduce(several: Iterable[Mapping[str, Metric]]) -> dict[str, float]:
    """Return one value per name. Means are not weighted; a name may be missing in some of the mappings."""
    by_name: dict[str, list[Metric]] = {}
    for metrics in several:
        for name, metric in metrics.items():
            by_name.setdefault(name, []).append(metric)
    return {name: _reduced([metric.value for metric in same], same[0].reduction) for name, same in by_name.items()}


def _reduced(values: list[float], reduction: Reduction) -> float:
    match reduction:
        case "sum":
            return sum(values)
        case "mean":
            return sum(values) / len(values)
        case "max":
            return max(values)
        case "first":
            return values[0]
        case "last":
            return values[-1]
