"""RLOO (arXiv 2402.14740): the baseline of a trajectory is the mean of the others in its group."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.advantage.groups import within_groups


def rloo(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """A_i = R_i − (Σ_{j≠i} R_j) / (n − 1). Needs n ≥ 2."""
    return within_groups(step_rewards, groups, lambda totals: totals - (totals.sum() - totals) / max(1, len(totals) - 1))
