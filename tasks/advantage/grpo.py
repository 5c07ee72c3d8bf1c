"""GRPO (arXiv 2402.03300, equation 3 with outcome rewards)."""

from collections.abc import Sequence

import numpy as np


def grpo(step_rewards: Sequence[Sequence[float]], groups: Sequence[str], gamma: float) -> list[np.ndarray]:
    """A = (R − mean of the group) / (std of the group + 1e-8), R the trajectory's total, the same on each of its steps."""
    totals = np.array([sum(rewards) for rewards in step_rewards])
    names = np.array(groups)
    advantages = np.zeros_like(totals)
    for name in set(groups):
        mine = names == name
        spread = totals[mine].std(ddof=1) if mine.sum() > 1 else 0.0
        advantages[mine] = (totals[mine] - totals[mine].mean()) / (spread + 1e-8)
    return [np.full(len(rewards), advantage) for rewards, advantage in zip(step_rewards, advantages, strict=True)]
