"""The verdict of a rule on one trajectory."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field, FiniteFloat

FACETS, NAME_CHARS = 50, 60
_NAME = re.compile(r"[^A-Za-z0-9 _.-]")  # what MLflow's names of metrics cannot have

Paid = Annotated[FiniteFloat, Field(ge=-1e6, le=1e6)]
"""The reward of one step."""


class Judged(NamedTuple):
    """`exact`: 1 if the answer is right, else 0. `partial`: how much of it is, from 0 to 1.

    An environment of one's own may say what the task pays, at the end (`value`, from 0 to 1) or at each step (`steps`), facets
    to report, and what each child is worth, from 0 to 1. `fault` says why a scorer failed; then nothing else means anything.
    """

    exact: float
    partial: float
    value: float | None = None
    steps: tuple[float, ...] = ()
    facets: tuple[tuple[str, float], ...] = ()
    fault: str = ""
    children: tuple[float, ...] = ()


def named_facets(given: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Return the finite facets by names that a metric can have, at most FACETS; the others cost a trajectory nothing."""
    named = {
        _NAME.sub("_", name.replace("@", "_at_")).lstrip("_ .-")[:NAME_CHARS]: value
        for name, value in given.items()
        if math.isfinite(value)
    }
    return tuple(sorted((name, value) for name, value in named.items() if name)[:FACETS])
