"""Whitening over a whole batch."""

from collections.abc import Sequence

import numpy as np


def whiten(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """(x − mean) / (std + 1e-8) over all entries of all arrays, std unbiased and 0 for a single entry (L0, arXiv 2506.23667)."""
    every = np.concatenate(values)
    spread = every.std(ddof=1) if len(every) > 1 else 0.0
    return [(each - every.mean()) / (spread + 1e-8) for each in values]
