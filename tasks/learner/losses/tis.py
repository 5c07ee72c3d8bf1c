"""Importance weights between the policy that sampled, in the engine, and the trainer that learns."""

from typing import NamedTuple

import torch
from torch import Tensor

from nbrl.tasks.learner.losses.means import mean_within
from nbrl.tasks.learner.settings import TisSettings


class TisWeights(NamedTuple):
    """Constant weights of N tokens, and which of them were outside the bounds, below or above."""

    weight_N: Tensor
    low_N: Tensor
    high_N: Tensor


def tis_weights(log_N: Tensor, action_N: Tensor, trajectory_log_N: Tensor | None, settings: TisSettings) -> TisWeights:
    """Weights from the constant log w of each token, w = pi_trainer / pi_engine, and the bounds [low, high].

    truncate: w held within them (from above only: Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training", 2025). mask_tokens: w within them, else 0 (IcePop, arXiv 2510.18855, with [0.5, 5]). mask_actions: the same of the
    geometric mean of w over an action, the same for all its tokens. mask_trajectories: w of a token if the geometric mean over
    its trajectory, whose logarithm is `trajectory_log_N`, is within them, else 0.
    """
    low, high = settings.bounds
    if settings.kind == "mask_actions":
        log_N = mean_within(log_N, action_N)
    judged_N = torch.exp(log_N)
    weight_N = judged_N
    if settings.kind == "mask_trajectories":
        assert trajectory_log_N is not None
        judged_N = torch.exp(trajectory_log_N)
    low_N, high_N = judged_N < low, judged_N > high
    if settings.kind == "truncate":
        return TisWeights(weight_N.clamp(low, high), low_N, high_N)
    return TisWeights(weight_N.masked_fill(low_N | high_N, 0.0), low_N, high_N)
