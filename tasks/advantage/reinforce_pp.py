"""Step-level REINFORCE++ (arXiv 2501.03262; over steps as in L0, arXiv 2506.23667)."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.advantage.whiten import whiten


def discounted_returns(rewards: Sequence[float], gamma: float) -> np.ndarray:
    """R_t = Σ_{u≥t} γ^(u−t) r_u over the steps of one trajectory; shape [steps]."""
    returns = np.zeros(len(rewards))
    following = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        following = rewards[step] + gamma * following
        returns[step] = following
    return returns


def reinforce_pp(step_rewards: Sequence[Sequence[float]], gamma: float) -> list[np.ndarray]:
    """Step returns whitened over all steps of the batch; one array of [steps] per trajectory."""
    return whiten([discounted_returns(rewards, gamma) for rewards in step_rewards])
