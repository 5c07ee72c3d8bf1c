"""The loss by hand."""

import math

import torch

from tasks.update.loss import k3, policy_gradient


def test_k3_by_hand() -> None:
    logp = torch.tensor([-1.0, -2.0, -30.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.0, -1.5, -1.0], dtype=torch.float64)
    kl = k3(logp, reference, clamp=10.0)
    expected = [0.0, math.exp(0.5) - 1.5, math.exp(10) - 11]
    torch.testing.assert_close(kl.detach(), torch.tensor(expected, dtype=torch.float64))
    kl.sum().backward()
    assert logp.grad is not None
    # d/dlogp of exp(d) - d - 1 is 1 - exp(d); outside the clamp it is zero
    torch.testing.assert_close(logp.grad, torch.tensor([0.0, 1 - math.exp(0.5), 0.0], dtype=torch.float64))


def test_policy_gradient_is_minus_the_advantage() -> None:
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    policy_gradient(logp, torch.tensor([3.0, -4.0])).sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [-3.0, 4.0]
