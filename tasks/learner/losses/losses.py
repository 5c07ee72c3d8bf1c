"""Losses of single sampled tokens: each gives [N] losses and, where it has a bound, [N] flags of the tokens that met it."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nbrl.tasks.learner.settings import CispoLoss, DistillLoss, DppoLoss, GspoLoss, PpoLoss, TisSettings

KL_CLAMP = 10.0  # nats; beyond it exp(d) of k3 would decide the whole gradient


def ppo(logp_N: Tensor, old_N: Tensor, advantage_N: Tensor, settings: PpoLoss) -> tuple[Tensor, Tensor]:
    """Compute PPO's clipped surrogate (arXiv 1707.06347, equation 7) with separate bounds on either side (DAPO, arXiv 2503.14476,
    equation 8) and the dual clip (arXiv 1912.09729).

    -min(r A, clip(r, 1 - low, 1 + high) A), and for A < 0 at most -c A, with r = exp(logp - old).

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


def policy_gradient(logp_N: Tensor, advantage_N: Tensor) -> Tensor:
    """Return -A log pi: the gradient of the sum is -sum over tokens of advantage * grad log pi(token)."""
    return -(advantage_N * logp_N)


def distill(logp_N: Tensor, teacher_N: Tensor, advantage_N: Tensor, settings: DistillLoss) -> Tensor:
    """Return -(w A + clip(log pi_T - log pi)) log pi with a constant factor; w = settings.reward, clipped at +-KL_CLAMP nats.

    On tokens that pi sampled, the gradient of the second term is in the mean that of KL(pi || pi_T) in the states that they were
    sampled in (MiniLLM, arXiv 2306.08543, equation 3; without the terms of later tokens, as in GKD, arXiv 2306.13649).
    """
    said_N = (teacher_N - logp_N.detach()).clamp(-KL_CLAMP, KL_CLAMP)
    return policy_gradient(logp_N, settings.reward * advantage_N + said_N)


def mean_within(value_N: Tensor, owner_N: Tensor) -> Tensor:
    """Return for each token the mean of `value_N` over the tokens with the same owner, which must all be present."""
    names_A, local_N = torch.unique(owner_N, return_inverse=True)
    sums_A = torch.zeros(len(names_A), dtype=value_N.dtype, device=value_N.device).index_add(0, local_N, value_N)
    mean_A = sums_A / torch.bincount(local_N, minlength=len(names_A))
    return mean_A[local_N]


def cispo(logp_N: Tensor, old_N: Tensor, advantage_N: Tensor, settings: CispoLoss) -> tuple[Tensor, Tensor]:
    """Compute CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5).

    -sg(clip(r, 1 - low, 1 + high)) A log pi: the weight is clipped and constant, so no token loses its gradient.
    """
    ratio_N = torch.exp(logp_N - old_N).detach()
    weight_N = ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -(weight_N * advantage_N * logp_N), weight_N != ratio_N


def dppo(logp_N: Tensor, old_N: Tensor, advantage_N: Tensor, settings: DppoLoss) -> tuple[Tensor, Tensor]:
    """Compute DPPO with the binary total variation (arXiv 2602.04879): a trust region of probabilities where PPO has one of
    ratios.

    -r A with r = exp(logp - old), without a gradient where the probability of the token has already moved by more than delta
    in the direction of A: above for A > 0, below for A < 0.
    """
    ratio_N = torch.exp(logp_N - old_N)
    moved_N = (torch.exp(logp_N) - torch.exp(old_N)).detach()
    clipped_N = ((advantage_N > 0) & (moved_N > settings.delta)) | ((advantage_N < 0) & (moved_N < -settings.delta))
    return -torch.where(clipped_N, ratio_N.detach(), ratio_N) * advantage_N, clipped_N


def gspo(logp_N: Tensor, old_N: Tensor, advantage_N: Tensor, action_N: Tensor, settings: GspoLoss) -> tuple[Tensor, Tensor]:
    """Compute GSPO (arXiv 2507.18071). The sequence is the sampled action of one step, because an advantage belongs to an action.

    -min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean over the action of logp - old): equation 5, s from equation 7.

    Written per token as equation 14, sg(s) pi / sg(pi): the same gradient if the tokens of an action share one advantage, and
    also defined if they do not.
    """
    ratio_N = torch.exp(mean_within((logp_N - old_N).detach(), action_N) + logp_N - logp_N.detach())
    free_N = ratio_N * advantage_N
    held_N = ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantage_N
    return -torch.minimum(free_N, held_N), held_N < free_N


def value_loss(value_N: Tensor, before_N: Tensor, return_N: Tensor, clip: float | None) -> Tensor:
    """Return the critic's loss (arXiv 1707.06347, equation 9; clipped as in PPO's published code, arXiv 2005.12729, section 3).

    (V - R)^2 / 2; with `clip`, the larger of that and the same for V held within `clip` of the value before.
    """
    loss_N = (value_N - return_N).square()
    if clip is not None:
        held_N = before_N + (value_N - before_N).clamp(-clip, clip)
        loss_N = torch.maximum(loss_N, (held_N - return_N).square())
    return loss_N / 2


class TisWeights(NamedTuple):
    """Constant weights of N tokens, and which of them were outside the bounds, below or above."""

    weight_N: Tensor
    low_N: Tensor
    high_N: Tensor


def tis_weights(log_N: Tensor, action_N: Tensor, trajectory_log_N: Tensor | None, settings: TisSettings) -> TisWeights:
    """Return weights from the constant log w of each token, w = pi_trainer / pi_engine, and the bounds [low, high].

    truncate: w held within them (from above only: Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training", 2025). mask_tokens: w within them, else 0 (IcePop, arXiv 2510.18855, with [0.5, 5]). mask_actions: the same of the
    geometric mean of w over an action, the same for all its tokens. mask_trajectories: w of a token if the geometric mean over
    its trajectory, whose logarithm is `trajectory_log_N`, is within them, else 0.
    """
    low, high = settings.bounds
    if settings.kind == "mask_actions":
        log_N = mean_within(log_N, action_N)
    judged_N = torch.exp(log_N)
    weight_N = judged_N
    if settings.kind == "mask_trajectories":
        assert trajectory_log_N is not None
        judged_N = torch.exp(trajectory_log_N)
    low_N, high_N = judged_N < low, judged_N > high
    if settings.kind == "truncate":
        return TisWeights(weight_N.clamp(low, high), low_N, high_N)
    return TisWeights(weight_N.masked_fill(low_N | high_N, 0.0), low_N, high_N)


def interpolated(logp_N: Tensor, engine_N: Tensor, staleness: int) -> Tensor:
    """Return log-probs of the policy before the step without a pass over it (A-3PO, arXiv 2512.06547).

    log mu + alpha (log pi - log mu), constant: between the policy mu that sampled and the current one pi, whose versions lie
    `staleness` + 1 updates apart, of which the policy before the step has gone alpha = staleness / (staleness + 1) of the way.
    """
    return engine_N + staleness / (staleness + 1) * (logp_N.detach() - engine_N)


def kl(estimator: Literal["k1", "k2", "k3"], logp_N: Tensor, reference_N: Tensor) -> Tensor:
    """Return the KL per token. With d = logp_ref - logp within +-KL_CLAMP: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1.

    k1 and k3 are unbiased, k2 and k3 never negative. As a term of the loss, k2 has on average the gradient of this KL, k3 that
    of KL(reference || policy), and k1 none (arXiv 2506.09477).
    """
    d_N = (reference_N - logp_N).clamp(-KL_CLAMP, KL_CLAMP)
    if estimator == "k1":
        return -d_N
    if estimator == "k2":
        return d_N.square() / 2
    return torch.exp(d_N) - d_N - 1
