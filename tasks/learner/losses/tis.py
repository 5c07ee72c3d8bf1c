"""Importance weights between the engine that sampled and the trainer that learns, whose log-probs are never quite the same."""

import torch
from torch import Tensor

from nbrl.tasks.learner.losses.actions import action_mean
from nbrl.tasks.learner.settings import TisSettings


def tis_weights(trainer_N: Tensor, engine_N: Tensor, action_N: Tensor, settings: TisSettings) -> tuple[Tensor, Tensor]:
    """Constant weights [N] and flags of the tokens truncated or masked, from w = exp(trainer - engine).

    truncate: min(w, C) (Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025).
    mask_tokens: w within [1/C, C], else 0 (IcePop, 2025). mask_actions: the same of the geometric mean of w over an action, the
    same for all its tokens.
    """
    log_N = (trainer_N - engine_N).detach()
    if settings.kind == "mask_actions":
        log_N = action_mean(log_N, action_N)
    weight_N = torch.exp(log_N)
    if settings.kind == "truncate":
        return weight_N.clamp(max=settings.cap), weight_N > settings.cap
    outside_N = (weight_N > settings.cap) | (weight_N < 1 / settings.cap)
    return weight_N.masked_fill(outside_N, 0.0), outside_N
