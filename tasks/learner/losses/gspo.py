"""GSPO (arXiv 2507.18071). The sequence is the sampled action of one step, because an advantage belongs to an action."""

import torch
from torch import Tensor

from nbrl.tasks.learner.losses.means import mean_within
from nbrl.tasks.learner.settings import GspoLoss


def gspo(logp_N: Tensor, old_N: Tensor, advantage_N: Tensor, action_N: Tensor, settings: GspoLoss) -> tuple[Tensor, Tensor]:
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean over the action of logp - old): equation 5, s from equation 7.

    Written per token as equation 14, sg(s) pi / sg(pi): the same gradient if the tokens of an action share one advantage, and
    also defined if they do not.
    """
    ratio_N = torch.exp(mean_within((logp_N - old_N).detach(), action_N) + logp_N - logp_N.detach())
    free_N = ratio_N * advantage_N
    held_N = ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantage_N
    return -torch.minimum(free_N, held_N), held_N < free_N
