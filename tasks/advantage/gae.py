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
    """GAE inside one step: the step's return (its step-level advantage plus its value) is the reward of its last token, and no
    other token has one. With γ = λ = 1 the first token's advantage is the step's own. Not whitened; [tokens].

    L0 names step-level GAE with token-level GAE on top ("bi-level"); how the two are joined is not published, this is ours.
    """
    rewards = np.zeros(len(values))
    rewards[-1] = step_return
    return gae(rewards.tolist(), values, gamma, lam)
