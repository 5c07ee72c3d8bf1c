"""Estimates of KL(policy || reference) from one token sampled from the policy (Schulman, "Approximating KL divergence", 2020)."""

from typing import Literal

import torch
from torch import Tensor


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
