"""The critic's loss (arXiv 1707.06347, equation 9; clipped as in PPO's published code, arXiv 2005.12729, section 3)."""

import torch
from torch import Tensor


def value_loss(value_N: Tensor, before_N: Tensor, return_N: Tensor, clip: float | None) -> Tensor:
    """(V - R)^2 / 2; with `clip`, the larger of that and the same for V held within `clip` of the value before."""
    loss_N = (value_N - return_N).square()
    if clip is not None:
        held_N = before_N + (value_N - before_N).clamp(-clip, clip)
        loss_N = torch.maximum(loss_N, (held_N - return_N).square())
    return loss_N / 2
