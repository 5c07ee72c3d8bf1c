"""PPO's clipped surrogate (arXiv 1707.06347, equation 7) with separate bounds on either side (DAPO, arXiv 2503.14476,
equation 8) and the dual clip (arXiv 1912.09729).
"""

import torch
from torch import Tensor

from nbrl.tasks.learner.settings import PpoLoss


def ppo(logp_N: Tensor, old_N: Tensor, advantage_N: Tensor, settings: PpoLoss) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r, 1 - low, 1 + high) A), and for A < 0 at most -c A, with r = exp(logp - old).

    A clipped token has no gradient.
    """
    ratio_N = torch.exp(logp_N - old_N)
    free_N = ratio_N * advantage_N
    held_N = ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantage_N
    clipped_N = held_N < free_N
    gain_N = torch.minimum(free_N, held_N)
    if settings.dual_clip is not None:
        bound_N = settings.dual_clip * advantage_N
        bounded_N = (advantage_N < 0) & (gain_N < bound_N)
        gain_N = torch.where(bounded_N, bound_N, gain_N)
        clipped_N = clipped_N | bounded_N
    return -gain_N, clipped_N
