"""Per-token values computed once per batch before its first optimiser step: old and reference log-probs, advantages, values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.batch.batch import Batch
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.losses.losses import kl, mean_within
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.learner.step.estimates import explained_variance, make


@dataclass(frozen=True)
class BatchConstants:
    """Values per token of the whole batch in float64, or None if they are not needed.

    `old_N` and `reference_N` are log-probs of the policy before the first step and of the initial policy; `trajectory_log_N` is
    the mean of old less engine over a token's trajectory. Without `advantage_N` the advantages are those of the order's table.
    `teacher_N` and `staleness` are the batch's.
    """

    action_N: Tensor
    staleness: int
    teacher_N: Tensor | None = None
    old_N: Tensor | None = None
    reference_N: Tensor | None = None
    trajectory_log_N: Tensor | None = None
    advantage_N: Tensor | None = None
    value_N: Tensor | None = None
    return_N: Tensor | None = None
    valued_N: Tensor | None = None


def compute_constants(
    settings: UpdateSettings,
    batch: Batch,
    targets: Targets,
    estimate: AdvantageSettings | None,
    forwarded: Mapping[str, Tensor],
    device: torch.device,
) -> tuple[BatchConstants, dict[str, float]]:
    """Compute the constants from the `forwarded` values of old, reference and value, [N] each, with metrics of the estimate."""

    def put(array: npt.NDArray[Any] | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(array).to(device)

    old_N, reference_N, value_N = (forwarded.get(name) for name in ("old", "reference", "value"))
    action_N, teacher_N = torch.from_numpy(targets.action_N).to(device), put(batch.teacher_N)
    whole_N: Tensor | None = None
    if settings.masks_trajectories and old_N is not None:
        engine_N = torch.from_numpy(batch.forest.engine_logprob_N).to(device)
        whole_N = mean_within(old_N - engine_N, torch.from_numpy(targets.example_N).to(device))
    if estimate is None:
        return BatchConstants(action_N, batch.staleness, teacher_N, old_N, reference_N, whole_N), {}
    metrics: dict[str, float] = {}
    penalty_N: npt.NDArray[Any] | None = None
    if settings.kl_in_reward and old_N is not None and reference_N is not None:
        kl_N = kl(settings.kl_estimator, old_N, reference_N)
        penalty_N = (settings.kl_coefficient * kl_N).cpu().numpy()
        metrics["update/kl"] = kl_N.mean().item()
    values = None if value_N is None else value_N.cpu().numpy()
    estimates = make(batch, targets, estimate, penalty_N, values)
    if values is not None:
        metrics["critic/explained_variance"] = explained_variance(values, estimates)
        metrics["critic/value"] = float(values[estimates.valued_N].mean())
    constants = BatchConstants(
        action_N,
        batch.staleness,
        teacher_N,
        old_N,
        reference_N,
        whole_N,
        put(estimates.advantage_N),
        value_N,
        put(estimates.return_N),
        put(estimates.valued_N),
    )
    return constants, metrics
