"""Corrections for tokens that another policy sampled, and estimates of its distance: importance weights, old log-probs, KL."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nbrl.tasks.learner.losses.losses import mean_within
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


def interpolated(logp_N: Tensor, engine_N: Tensor, staleness: int) -> Tensor:
    """Log-probs of the policy before the step without a pass over it (A-3PO, arXiv 2512.06547).

    log mu + alpha (log pi - log mu), constant: between the policy mu that sampled and the current one pi, whose versions lie
    `staleness` + 1 updates apart, of which the policy before the step has gone alpha = staleness / (staleness + 1) of the way.
    """
    return engine_N + staleness / (staleness + 1) * (logp_N.detach() - engine_N)


def kl(estimator: Literal["k1", "k2", "k3"], logp_N: Tensor, reference_N: Tensor, clamp: float) -> Tensor:
    """With d = logp_ref - logp within +-clamp: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1.

    k1 and k3 are unbiased, k2 and k3 never negative. As a term of the loss, k2 has on average the gradient of this KL, k3 that
    of KL(reference || policy), and k1 none (arXiv 2506.09477).
    """
    d_N = (reference_N - logp_N).clamp(-clamp, clamp)
    if estimator == "k1":
        return -d_N
    if estimator == "k2":
        return d_N.square() / 2
    return torch.exp(d_N) - d_N - 1
