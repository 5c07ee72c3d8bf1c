"""RLOO (arXiv 2402.14740): the baseline of a trajectory is the mean of the others in its group."""

from collections.abc import Sequence

import numpy as np


def rloo(step_rewards: Sequence[Sequence[float]], groups: Sequence[str], gamma: float) -> list[np.ndarray]:
    """A_i = R_i − (Σ_{j≠i} R_j) / (n − 1), R the trajectory's total, the same on each of its steps. Needs n ≥ 2."""
    totals = np.array([sum(rewards) for rewards in step_rewards])
    names = np.array(groups)
    advantages = np.zeros_like(totals)
    for name in set(groups):
        mine = names == name
        others = mine.sum() - 1
        advantages[mine] = totals[mine] - (totals[mine].sum() - totals[mine]) / max(1, others)
    return [np.full(len(rewards), advantage) for rewards, advantage in zip(step_rewards, advantages, strict=True)]
