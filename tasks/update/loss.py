"""The loss, summed over sampled tokens; whoever calls divides by the number of sampled tokens of the whole batch."""

# ruff: noqa: N803, N806 - suffixes of tensor names are shapes

import torch
from torch import Tensor


def k3(logp_N: Tensor, reference_N: Tensor, clamp: float) -> Tensor:
    """Estimate of KL(policy || reference) a token sampled from the policy: exp(d) - d - 1, d = logp_ref - logp within +-clamp.

    Schulman, "Approximating KL divergence" (2020). Never negative, and zero with zero gradient at d = 0.
    """
    d_N = (reference_N - logp_N).clamp(-clamp, clamp)
    return torch.exp(d_N) - d_N - 1


def policy_gradient(logp_N: Tensor, advantage_N: Tensor) -> Tensor:
    """REINFORCE: the gradient of the sum is -sum over tokens of advantage * grad log pi(token)."""
    return -(advantage_N * logp_N)
