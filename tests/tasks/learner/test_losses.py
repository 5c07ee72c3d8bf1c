"""Each loss by hand, with its gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nbrl.tasks.learner.losses.losses import (
    cispo,
    distill,
    dppo,
    gspo,
    kl,
    mean_within,
    policy_gradient,
    ppo,
    tis_weights,
    value_loss,
)
from nbrl.tasks.learner.settings import CispoLoss, DistillLoss, DppoLoss, GspoLoss, PpoLoss, TisSettings
from nbrl.tasks.learner.step.objective import ess_share


def vector(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def logs(*ratios: float, grad: bool = False) -> Tensor:
    return vector(*(math.log(ratio) for ratio in ratios), grad=grad)


def gradient(loss: Tensor, logp: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss.sum(), logp)
    return found


@pytest.mark.parametrize(
    ("estimator", "values", "slopes"),
    [
        ("k1", [0.0, -0.5, -10.0], [1.0, 1.0, 0.0]),
        ("k2", [0.0, 0.125, 50.0], [0.0, -0.5, 0.0]),
        ("k3", [0.0, math.exp(0.5) - 1.5, math.exp(10) - 11], [0.0, 1 - math.exp(0.5), 0.0]),
    ],
)
def test_kl_by_hand(estimator: str, values: list[float], slopes: list[float]) -> None:
    logp = vector(-1.0, -2.0, -30.0, grad=True)
    found = kl(estimator, logp, vector(-1.0, -1.5, -1.0))  # d = 0, 0.5, and 29 held at 10
    torch.testing.assert_close(found.detach(), vector(*values))
    torch.testing.assert_close(gradient(found, logp), vector(*slopes))


def test_policy_gradient_is_minus_the_advantage() -> None:
    logp = vector(-1.0, -2.0, grad=True)
    assert gradient(policy_gradient(logp, vector(3.0, -4.0)), logp).tolist() == [-3.0, 4.0]


def test_distillation_pulls_each_token_to_the_teacher_and_no_further_than_its_bound() -> None:
    logp = vector(-1.0, -2.0, -3.0, grad=True)
    teacher, advantage = vector(-1.5, -1.0, -80.0), vector(2.0, 2.0, -1.0)
    alone = distill(logp, teacher, advantage, DistillLoss(kind="distill", teacher="t"))
    assert gradient(alone, logp).tolist() == [0.5, -1.0, 10.0]
    beside = distill(logp, teacher, advantage, DistillLoss(kind="distill", teacher="t", reward=0.25))
    assert gradient(beside, logp).tolist() == [0.0, -1.5, 10.25]


def test_the_gradient_of_distillation_is_that_of_the_reverse_kl() -> None:
    logits, teacher = vector(0.3, -0.2, 1.0, grad=True), vector(0.1, 0.7, -0.4).log_softmax(-1)
    logp = logits.log_softmax(-1)
    kl_to_teacher = (logp.exp() * (logp - teacher)).sum()
    (expected,) = torch.autograd.grad(kl_to_teacher, logits, retain_graph=True)
    settings = DistillLoss(kind="distill", teacher="t")
    mean = (logp.detach().exp() * distill(logp, teacher, vector(9.0, 9.0, 9.0), settings)).sum()  # over what the policy samples
    torch.testing.assert_close(torch.autograd.grad(mean, logits)[0], expected)


def test_ppo_by_hand() -> None:
    ratios = [1.1, 1.5, 0.5, 0.5, 1.5, 4.0]
    advantages = [1.0, 2.0, 2.0, -1.0, -1.0, -2.0]
    logp = logs(*ratios, grad=True)
    loss, clipped = ppo(logp, vector(*[0.0] * 6), vector(*advantages), PpoLoss(kind="ppo", clip_low=0.2, clip_high=0.25))
    # free, above the clip, below it (free: it is to rise), below it for a bad token, above it (free), and beyond the dual clip
    torch.testing.assert_close(loss.detach(), vector(-1.1, -2.5, -1.0, 0.8, 1.5, 6.0))
    assert clipped.tolist() == [False, True, False, True, False, True]
    torch.testing.assert_close(gradient(loss, logp), vector(-1.1, 0.0, -1.0, 0.0, 1.5, 0.0))
    single, _ = ppo(logp, vector(*[0.0] * 6), vector(*advantages), PpoLoss(kind="ppo", dual_clip=None))
    assert single[5].item() == pytest.approx(8.0)


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-3, 3)), min_size=1, max_size=8))
def test_at_ratio_one_every_loss_has_the_gradient_of_the_policy_gradient(tokens: list[tuple[float, float]]) -> None:
    logp = vector(*(each for each, _ in tokens), grad=True)
    advantage, old = vector(*(each for _, each in tokens)), logp.detach()
    action = torch.arange(len(tokens)) // 3
    expected = gradient(policy_gradient(logp, advantage), logp)
    for loss, clipped in [
        ppo(logp, old, advantage, PpoLoss(kind="ppo")),
        gspo(logp, old, advantage, action, GspoLoss(kind="gspo")),
        cispo(logp, old, advantage, CispoLoss(kind="cispo")),
        dppo(logp, old, advantage, DppoLoss(kind="dppo")),
    ]:
        torch.testing.assert_close(gradient(loss, logp), expected)
        assert not clipped.any()


def test_dppo_stops_a_token_whose_probability_moved_too_far_the_way_it_is_pushed() -> None:
    # From 0.5, 0.5, 0.001, 0.5 and 0.5: the third has the largest ratio, and hardly moved. The last two moved against the push.
    logp, old = logs(0.75, 0.25, 0.1, 0.75, 0.25, grad=True), logs(0.5, 0.5, 0.001, 0.5, 0.5)
    loss, clipped = dppo(logp, old, vector(1.0, -1.0, 1.0, -1.0, 1.0), DppoLoss(kind="dppo", delta=0.2))
    assert clipped.tolist() == [True, True, False, False, False]
    torch.testing.assert_close(loss.detach(), vector(-1.5, 0.5, -100.0, 1.5, -0.5))
    torch.testing.assert_close(gradient(loss, logp), vector(0.0, 0.0, -100.0, 1.5, -0.5))


def test_cispo_keeps_the_gradient_of_a_clipped_token() -> None:
    logp = logs(1.5, 9.0, 0.1, grad=True)
    loss, clipped = cispo(
        logp, vector(0.0, 0.0, 0.0), vector(2.0, 1.0, 1.0), CispoLoss(kind="cispo", clip_low=0.5, clip_high=4.0)
    )
    torch.testing.assert_close(gradient(loss, logp), vector(-3.0, -5.0, -0.5))
    assert clipped.tolist() == [False, True, True]


def test_gspo_is_the_sequence_objective_of_the_paper() -> None:
    logp = logs(1.2, 1.1, 0.7, 3.0, grad=True)
    action, advantage, settings = torch.tensor([0, 0, 1, 1]), vector(2.0, 2.0, 1.0, 1.0), GspoLoss(kind="gspo", clip_high=0.2)
    loss, clipped = gspo(logp, torch.zeros(4, dtype=torch.float64), advantage, action, settings)
    ratio = torch.stack([torch.exp(logp[:2].mean()), torch.exp(logp[2:].mean())])  # 1.149 and 1.449
    gain = torch.minimum(ratio * vector(2.0, 1.0), ratio.clamp(1 - settings.clip_low, 1.2) * vector(2.0, 1.0))
    torch.testing.assert_close(loss.detach(), -gain.detach().repeat_interleave(2))
    assert clipped.tolist() == [False, False, True, True]
    torch.testing.assert_close(gradient(loss, logp) / 2, gradient(-gain, logp))  # a mean over an action's two tokens


def test_the_mean_within_an_action_does_not_mind_the_order() -> None:
    found = mean_within(vector(1.0, 10.0, 2.0, 3.0), torch.tensor([7, 2, 7, 7]))
    assert found.tolist() == [2.0, 10.0, 2.0, 2.0]
    assert mean_within(vector(), torch.zeros(0, dtype=torch.int64)).tolist() == []


@pytest.mark.parametrize(
    ("settings", "weights", "low", "high"),
    [
        ({"kind": "truncate"}, [2.0, 0.25, 1.5, 1.0], [], [0]),
        ({"kind": "truncate", "low": 0.5}, [2.0, 0.5, 1.5, 1.0], [1], [0]),
        ({"kind": "mask_tokens"}, [0.0, 0.0, 1.5, 1.0], [1], [0]),
        ({"kind": "mask_tokens", "low": 0.2, "high": 5.0}, [4.0, 0.25, 1.5, 1.0], [], []),
        ({"kind": "mask_actions"}, [1.0, 1.0, math.sqrt(1.5), math.sqrt(1.5)], [], []),
        ({"kind": "mask_actions", "high": 1.2, "low": 0.1}, [1.0, 1.0, 0.0, 0.0], [], [2, 3]),
        ({"kind": "mask_actions", "high": 9.0, "low": 0.99}, [1.0, 1.0, math.sqrt(1.5), math.sqrt(1.5)], [], []),
    ],
)
def test_tis_by_hand(settings: dict[str, object], weights: list[float], low: list[int], high: list[int]) -> None:
    chosen = TisSettings.model_validate(settings)
    found = tis_weights(logs(4.0, 0.25, 1.5, 1.0), torch.tensor([0, 0, 1, 1]), None, chosen)
    torch.testing.assert_close(found.weight_N, vector(*weights))
    assert (found.low_N.nonzero().flatten().tolist(), found.high_N.nonzero().flatten().tolist()) == (low, high)


def test_tis_masks_a_whole_action() -> None:
    found = tis_weights(logs(9.0, 1.0, 1.0), torch.tensor([0, 0, 1]), None, TisSettings(kind="mask_actions"))
    assert found.weight_N.tolist() == [0.0, 0.0, 1.0]


def test_tis_masks_a_whole_trajectory_by_its_geometric_mean_and_leaves_the_tokens_of_others_their_weight() -> None:
    whole = logs(3.0, 3.0, 1.5, 1.5)
    found = tis_weights(logs(9.0, 1.0, 9.0, 0.25), torch.tensor([0, 1, 2, 3]), whole, TisSettings(kind="mask_trajectories"))
    torch.testing.assert_close(found.weight_N, vector(0.0, 0.0, 9.0, 0.25))
    assert found.high_N.tolist() == [True, True, False, False]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9))
def test_the_effective_share_of_samples_is_one_only_where_all_weigh_the_same(logs_: list[float]) -> None:
    weights = vector(*logs_).exp()
    share = ess_share(weights.mean().item(), weights.square().mean().item())
    assert 1 / len(logs_) - 1e-9 <= share <= 1 + 1e-9
    apart = max(logs_) - min(logs_)
    assert share > 1 - 1e-9 or apart > 1e-6
    assert share < 1 - 1e-7 or apart < 1e-2


def test_value_loss_by_hand() -> None:
    value = vector(2.0, 2.0, grad=True)
    free = value_loss(value, vector(1.0, 1.0), vector(3.0, 0.0), None)
    assert free.tolist() == [0.5, 2.0]
    held = value_loss(value, vector(1.0, 1.0), vector(3.0, 0.0), clip=0.5)  # both values held at 1.5
    assert held.tolist() == [1.125, 2.0]
    assert gradient(held, value).tolist() == [0.0, 2.0]
