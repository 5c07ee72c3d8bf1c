"""Whitening over a whole batch."""

from collections.abc import Sequence

import numpy as np

ROUNDING = 1e-6  # advantages below it are rounding errors of equal rewards


def whiten(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """(x − mean) / (std + 1e-8) over all entries of all arrays, std unbiased and 0 for a single entry (L0, arXiv 2506.23667)."""
    entries = np.concatenate(values)
    spread = entries.std(ddof=1) if len(entries) > 1 else 0.0
    return [(array - entries.mean()) / (spread + 1e-8) for array in values]
