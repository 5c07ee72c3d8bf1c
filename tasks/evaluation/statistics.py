"""Scores of samples as estimates over questions: mean, pass@k and majority, each with an interval over questions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nbrl.tasks.evaluation.summary import Estimate

RESAMPLES = 10_000
LEVEL = 0.95
Z = 1.959964  # of the normal distribution at this level
FEW = 30  # questions below which an interval is wide
SEED = 20
BLOCK = 1 << 22  # numbers drawn at once

Scores = Sequence[float]
"""One number for each question."""


@dataclass(frozen=True)
class Difference:
    """The second of two scores less the first, on the same questions; `p` is two-sided."""

    value: float
    low: float
    high: float
    p: float
    questions: int

    def __str__(self) -> str:
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}], {p}"


def pass_at(samples: int, right: int, k: int) -> float:
    """Return the probability that at least one of `k` of a question's `samples` is right, of which `right` are: 1 - C(n-c, k) /
    C(n, k).

    The unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, equation 1). Raises ValueError unless 1 <= k <= samples.
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise ValueError(f"pass@{k} of {samples} samples, {right} of them right, is not defined")
    if samples - right < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(samples - right + 1, samples + 1)))


def estimate(scores: Scores) -> Estimate:
    """Return the mean over questions with its interval. Empty: all NaN.

    Where each question is right or wrong that is Wilson's (Wilson 1927, as in Brown, Cai and DasGupta 2001, section 3.1.1), which
    also holds for few questions and for none or all right; otherwise that of the percentile bootstrap over questions.
    """
    if not scores:
        return Estimate(np.nan, np.nan, np.nan, 0)
    if all(score in (0, 1) for score in scores):
        return _wilson(sum(scores), len(scores))
    means = _resampled(np.asarray(scores, dtype=np.float64))
    low, high = np.quantile(means, _BOUNDS)
    return Estimate(float(np.mean(scores)), float(low), float(high), len(scores))


def about_intervals(questions: int) -> str:
    """Return what a reader of intervals over so many questions needs to know."""
    wide = f"; they are wide, as there are only {questions}" if questions < FEW else ""
    return f"brackets are 95 % intervals over questions{wide}"


def _wilson(right: float, count: int) -> Estimate:
    share, weight = right / count, Z**2 / count
    centre, half = share + weight / 2, Z * (share * (1 - share) / count + weight / (4 * count)) ** 0.5
    low, high = (centre - half) / (1 + weight), (centre + half) / (1 + weight)
    return Estimate(share, max(0.0, low), min(1.0, high), count)


def difference(first: Scores, second: Scores) -> Difference:
    """Return the paired bootstrap of `second` less `first`; `[i]` of both is the score of the same question.

    `p` is twice the smaller share of resamples on one side of zero, counted as in Davison and Hinkley 1997, section 4.2. Raises
    ValueError where the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} scores cannot be paired")
    if not first:
        return Difference(np.nan, np.nan, np.nan, np.nan, 0)
    gains = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    means = _resampled(gains)
    low, high = np.quantile(means, _BOUNDS)
    below, above = int(np.sum(means <= 0)), int(np.sum(means >= 0))
    p = min(1.0, 2 * (1 + min(below, above)) / (1 + RESAMPLES))
    return Difference(float(gains.mean()), float(low), float(high), p, len(first))


_BOUNDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


def _resampled(values_q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return means of RESAMPLES draws of as many questions, with replacement; always the same draws."""
    draws, count = np.random.default_rng(SEED), len(values_q)
    rows = max(1, BLOCK // count)
    parts = []
    for first in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - first)
        parts.append(values_q[draws.integers(0, count, (size, count))].mean(axis=1))
    return np.concatenate(parts)
