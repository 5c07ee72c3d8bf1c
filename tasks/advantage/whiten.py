"""Whitening over a whole batch."""

from collections.abc import Sequence

import numpy as np

ROUNDING = 1e-6  # advantages below it are rounding errors of equal rewards
EQUAL = 1e-9  # of the largest reward: totals that differ by less are equal, for sums of rewards are rounded


def equal(totals: np.ndarray, largest: float) -> bool:
    """Whether the totals [any number] of rewards, of which none is above `largest` in size, differ by rounding alone."""
    return not len(totals) or bool(np.isfinite(largest) and np.ptp(totals) <= EQUAL * largest)


def whiten(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """(x − mean) / (std + 1e-8) over all entries of all arrays, std unbiased and 0 for a single entry (L0, arXiv 2506.23667).

    Of entries that are equal, exactly 0.
    """
    entries = np.concatenate(values)
    if equal(entries, np.abs(entries).max(initial=0.0)):
        return [np.zeros(len(array)) for array in values]
    spread = entries.std(ddof=1) if len(entries) > 1 else 0.0
    return [(array - entries.mean()) / (spread + 1e-8) for array in values]
