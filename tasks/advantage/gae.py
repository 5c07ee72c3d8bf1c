"""Generalised advantage estimation (arXiv 1506.02438, equation 16), over steps and over the tokens of a step."""

from collections.abc import Sequence

import numpy as np


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> np.ndarray:
    """A_t = Σ_l (γλ)^l δ_{t+l}, δ_t = r_t + γ V_{t+1} − V_t; the value after the last entry is 0. Not whitened; [steps]."""
    advantages = np.zeros(len(rewards))
    following = value_after = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + gamma * value_after - values[t]
        following = delta + gamma * lam * following
        advantages[t] = following
        value_after = values[t]
    return advantages


def token_gae(step_return: float, values: Sequence[float], gamma: float, lam: float) -> np.ndarray:
    """GAE inside one step: the step's return is the reward of its last token, and no other token has one. Not whitened; [tokens].

    L0's code connects the levels in this way (repository cmriat/l0). With GAE over steps, the step's return is its advantage plus
    its value, and then with γ = λ = 1 the first token's advantage is the step's own; with REINFORCE++ it is R_t.
    """
    rewards = np.zeros(len(values))
    rewards[-1] = step_return
    return gae(rewards.tolist(), values, gamma, lam)
