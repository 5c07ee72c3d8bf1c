"""Means over the tokens of an action or a trajectory."""

import torch
from torch import Tensor


def mean_within(value_N: Tensor, owner_N: Tensor) -> Tensor:
    """For each token the mean of `value_N` over the tokens with the same owner, which must all be present."""
    names_A, local_N = torch.unique(owner_N, return_inverse=True)
    sums_A = torch.zeros(len(names_A), dtype=value_N.dtype, device=value_N.device).index_add(0, local_N, value_N)
    mean_A = sums_A / torch.bincount(local_N, minlength=len(names_A))
    return mean_A[local_N]
