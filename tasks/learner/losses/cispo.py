"""CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5)."""

import torch
from torch import Tensor

from nbrl.tasks.learner.settings import CispoLoss


def cispo(logp_N: Tensor, old_N: Tensor, advantage_N: Tensor, settings: CispoLoss) -> tuple[Tensor, Tensor]:
    """-sg(clip(r, 1 - low, 1 + high)) A log pi: the weight is clipped and constant, so no token loses its gradient."""
    ratio_N = torch.exp(logp_N - old_N).detach()
    weight_N = ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -(weight_N * advantage_N * logp_N), weight_N != ratio_N
