"""DPPO with the binary total variation (arXiv 2602.04879): a trust region of probabilities where PPO has one of ratios."""

import torch
from torch import Tensor

from nbrl.tasks.learner.settings import DppoLoss


def dppo(logp_N: Tensor, old_N: Tensor, advantage_N: Tensor, settings: DppoLoss) -> tuple[Tensor, Tensor]:
    """-r A with r = exp(logp - old), without a gradient where the probability of the token has already moved by more than delta
    in the direction of A: above for A > 0, below for A < 0.
    """
    ratio_N = torch.exp(logp_N - old_N)
    moved_N = (torch.exp(logp_N) - torch.exp(old_N)).detach()
    clipped_N = ((advantage_N > 0) & (moved_N > settings.delta)) | ((advantage_N < 0) & (moved_N < -settings.delta))
    return -torch.where(clipped_N, ratio_N.detach(), ratio_N) * advantage_N, clipped_N
