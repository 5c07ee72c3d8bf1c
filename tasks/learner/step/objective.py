"""The loss of a micro-batch, and the figures that it reports."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nbrl.tasks.learner.batch.micro_batch import MicroBatch
from nbrl.tasks.learner.losses.losses import (
    cispo,
    distill,
    dppo,
    gspo,
    interpolated,
    kl,
    policy_gradient,
    ppo,
    tis_weights,
    value_loss,
)
from nbrl.tasks.learner.settings import CispoLoss, DistillLoss, DppoLoss, GspoLoss, PpoLoss, UpdateSettings
from nbrl.tasks.learner.step.batch_constants import BatchConstants

WEIGHT, SQUARE = "weight", "square"  # sums over tokens of w = pi_trainer / pi_engine and of its square


def ess_share(mean: float, mean_square: float) -> float:
    """Return the batch's effective sample size as a share of its tokens, (sum w)^2 / (N sum w^2) (Kish 1965)."""
    return mean**2 / mean_square


class Reported(NamedTuple):
    """Figures of a micro-batch's tokens: sums of the update, and sums and maxima of the mismatch of engine and trainer."""

    update: dict[str, Tensor]
    mismatch: dict[str, Tensor]
    largest: dict[str, Tensor]


class MetricSums:
    """Sums or maxima of scalars by name. Every rank must add the same names."""

    def __init__(self, device: torch.device, reduce: Literal["sum", "max"] = "sum") -> None:
        self._device, self._reduce = device, reduce
        self._by_name: dict[str, Tensor] = {}

    def add(self, scalars: Mapping[str, Tensor]) -> None:
        for name, scalar in scalars.items():
            value = scalar.detach().double()
            if name in self._by_name:
                earlier = self._by_name[name]
                value = earlier + value if self._reduce == "sum" else torch.maximum(earlier, value)
            self._by_name[name] = value

    def gather(self) -> dict[str, float]:
        """Collective. Return the sums or maxima over all ranks."""
        names = sorted(self._by_name)
        if not names:
            return {}
        values = torch.stack([self._by_name[name] for name in names]).to(self._device)
        dist.all_reduce(values, op=dist.ReduceOp.SUM if self._reduce == "sum" else dist.ReduceOp.MAX)
        return dict(zip(names, values.tolist(), strict=True))


def policy_loss(
    settings: UpdateSettings,
    micro: MicroBatch,
    constants: BatchConstants,
    logp_N: Tensor,
    reference_N: Tensor | None,
    weight_N: Tensor,
) -> tuple[Tensor, Reported]:
    """Return the weighted sum of the tokens' losses, and the sums and the maximum over tokens to report.

    `weight_N` has the tokens of the whole batch. With one step per batch the old log-probs are the current ones, as constants.
    """
    dtype = logp_N.dtype
    mine_N = micro.index_N
    advantage_N = (micro.advantage_N if constants.advantage_N is None else constants.advantage_N[mine_N]).to(dtype)
    trainer_N = logp_N.detach() if constants.old_N is None else constants.old_N[mine_N].to(dtype)
    engine_N = micro.engine_logprob_N.to(dtype)
    match settings.old:
        case "trainer":
            old_N = trainer_N
        case "engine":
            old_N = engine_N
        case "interpolated":
            old_N = interpolated(logp_N, engine_N, constants.staleness)
    action_N = constants.action_N[mine_N]
    update: dict[str, Tensor] = {}
    mismatch: dict[str, Tensor] = {}
    clipped_N: Tensor | None = None
    match settings.loss:
        case PpoLoss():
            pg_N, clipped_N = ppo(logp_N, old_N, advantage_N, settings.loss)
        case GspoLoss():
            pg_N, clipped_N = gspo(logp_N, old_N, advantage_N, action_N, settings.loss)
        case CispoLoss():
            pg_N, clipped_N = cispo(logp_N, old_N, advantage_N, settings.loss)
        case DppoLoss():
            pg_N, clipped_N = dppo(logp_N, old_N, advantage_N, settings.loss)
        case DistillLoss():
            assert constants.teacher_N is not None
            teacher_N = constants.teacher_N[mine_N].to(dtype)
            pg_N = distill(logp_N, teacher_N, advantage_N, settings.loss)
            update["update/teacher_kl"] = (logp_N - teacher_N).detach()
        case _:
            pg_N = policy_gradient(logp_N, advantage_N)
    if clipped_N is not None:
        update |= {"update/ratio": torch.exp(logp_N - old_N), "update/clipped_share": clipped_N}
    if settings.tis is not None:
        whole_N = None if constants.trajectory_log_N is None else constants.trajectory_log_N[mine_N].to(dtype)
        tis = tis_weights(old_N - engine_N, action_N, whole_N, settings.tis)
        pg_N = tis.weight_N * pg_N
        mismatch |= {
            "mismatch/tis_weight": tis.weight_N,
            "mismatch/tis_low_share": tis.low_N,
            "mismatch/tis_high_share": tis.high_N,
        }
    kl_N = torch.zeros_like(pg_N)
    if reference_N is not None:
        kl_N = kl(settings.kl_estimator, logp_N, reference_N)
    mine_weight_N = weight_N[mine_N].to(dtype)
    loss = (mine_weight_N * (pg_N + settings.kl_coefficient * kl_N)).sum()
    with torch.no_grad():
        log_N = trainer_N.double() - micro.engine_logprob_N
        mismatch_N = log_N.abs()
        update |= {"update/pg_loss": mine_weight_N * pg_N, "update/kl": mine_weight_N * kl_N, "update/entropy": -logp_N}
        mismatch |= {"mismatch/logprob_mean_abs": mismatch_N, WEIGHT: torch.exp(log_N), SQUARE: torch.exp(2 * log_N)}
        largest = mismatch_N.max() if len(mismatch_N) else mismatch_N.sum()
        reported = Reported(
            {name: value_N.double().sum() for name, value_N in update.items()},
            {name: value_N.double().sum() for name, value_N in mismatch.items()},
            {"mismatch/logprob_max_abs": largest},
        )
    return loss, reported


def critic_loss(clip: float | None, micro: MicroBatch, constants: BatchConstants, value_N: Tensor, weight_N: Tensor) -> Tensor:
    """Return the sum over the tokens whose value is trained and whose `weight_N` is positive; each counts the same."""
    assert constants.value_N is not None
    assert constants.return_N is not None
    assert constants.valued_N is not None
    mine_N, dtype = micro.index_N, value_N.dtype
    loss_N = value_loss(value_N, constants.value_N[mine_N].to(dtype), constants.return_N[mine_N].to(dtype), clip)
    return (loss_N * (constants.valued_N & (weight_N > 0))[mine_N]).sum()
