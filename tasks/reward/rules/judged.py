"""The verdict of a rule on one trajectory."""

from typing import NamedTuple


class Judged(NamedTuple):
    """`exact`: 1 if the answer is right, else 0. `partial`: how much of it is, from 0 to 1.

    An environment of one's own may say what the task pays, at the end (`value`, from 0 to 1) or at each step (`steps`), and
    facets to report. `fault` says why a scorer failed; then nothing else means anything.
    """

    exact: float
    partial: float
    value: float | None = None
    steps: tuple[float, ...] = ()
    facets: tuple[tuple[str, float], ...] = ()
    fault: str = ""
