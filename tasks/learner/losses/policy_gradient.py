"""REINFORCE (Williams 1992): strictly on-policy."""

from torch import Tensor


def policy_gradient(logp_N: Tensor, advantage_N: Tensor) -> Tensor:
    """-A log pi: the gradient of the sum is -sum over tokens of advantage * grad log pi(token)."""
    return -(advantage_N * logp_N)
