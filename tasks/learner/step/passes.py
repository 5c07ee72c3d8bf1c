"""Forward and backward passes of one rank over its share of a batch."""

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.arrays import Floats
from nbrl.tasks.learner.batch.batch import Batch, check_fits
from nbrl.tasks.learner.batch.micro_batch import MicroBatch, to_device
from nbrl.tasks.learner.batch.partition import Partition, cost_of, partition
from nbrl.tasks.learner.batch.targets import Targets, token_weights
from nbrl.tasks.learner.batch.tree import Forest, PackedTree
from nbrl.tasks.learner.model.lora import Unadapted
from nbrl.tasks.learner.model.policy_model import Critic, PolicyModel
from nbrl.tasks.learner.process.ranks import Ranks, Timer
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.learner.step.batch_constants import BatchConstants, compute_constants
from nbrl.tasks.learner.step.objective import SQUARE, WEIGHT, MetricSums, critic_loss, ess_share, policy_loss
from nbrl.tasks.metrics import Metric, of


class Passes:
    """The policy and, if the settings need them, the frozen reference and teacher, and the critic. Every method is collective."""

    def __init__(
        self,
        settings: UpdateSettings,
        ranks: Ranks,
        device: torch.device,
        timer: Timer,
        policy: PolicyModel,
        reference: PolicyModel | Unadapted | None,
        critic: Critic | None,
        teacher: PolicyModel | None = None,
    ) -> None:
        self._settings, self._ranks, self._device, self._timer = settings, ranks, device, timer
        self._policy, self._reference, self._critic, self._teacher = policy, reference, critic, teacher

    def compute_constants(self, batch: Batch, estimate: AdvantageSettings | None) -> tuple[BatchConstants, dict[str, float]]:
        """Forward the values of the whole batch that are needed before its first step; none with default settings."""
        settings = self._settings
        several = settings.steps_per_batch > 1
        models: dict[str, PolicyModel | Unadapted | Critic] = {}
        if settings.kl_in_reward or settings.masks_trajectories or (several and settings.old == "trainer"):
            models["old"] = self._policy
        if self._reference is not None and (settings.kl_in_reward or several):
            models["reference"] = self._reference
        if self._critic is not None:
            models["value"] = self._critic
        forwarded = self._forwarded(batch.forest, models, self._policy)
        return compute_constants(settings, batch, Targets.of(batch.forest), estimate, forwarded, self._device)

    def teacher_logprobs(self, forest: Forest) -> Floats:
        """Return the teacher's log-probs of all targets. Raises UpdateError if it takes no such paths or tokens."""
        if self._teacher is None:
            raise UpdateError("the learner has no teacher: update.loss names none, or one that is served")
        check_fits(forest, self._teacher.lm.config)
        logp_N: Floats = self._forwarded(forest, {"teacher": self._teacher}, self._teacher)["teacher"].cpu().numpy()
        return logp_N

    def _forwarded(
        self, forest: Forest, models: Mapping[str, PolicyModel | Unadapted | Critic], shape: PolicyModel
    ) -> dict[str, Tensor]:
        """Return the values [N] of all targets under models that are forwarded as `shape` is."""
        forwarded = {name: torch.zeros(forest.targets, dtype=torch.float64, device=self._device) for name in models}
        if not models:
            return forwarded
        shares = self._partition(forest, range(len(forest.actions)), shape)
        for micro in self._micro_batches(forest, shares, shape):
            for name, model in models.items():
                with self._timer.phase(name), torch.no_grad():
                    forwarded[name][micro.index_N] = _forward(model, micro, replays=name == "old").double()
        for value_N in forwarded.values():
            dist.all_reduce(value_N)
        return forwarded

    def gradient(
        self, batch: Batch, constants: BatchConstants, targets: Targets, examples: Sequence[int], kept_N: Tensor | None = None
    ) -> dict[str, Metric]:
        """Leave the gradient of the examples' loss in the parameters, and return the metrics of the step.

        `kept_N`, if given, gets the log-probs of the targets that this rank forwards.
        Gradients are summed over ranks, so each rank's sum divided by `count`, that of all ranks, is its part of the global mean.
        """
        settings, phase = self._settings, self._timer.phase
        weights = token_weights(targets, examples, settings.aggregation, settings.fixed_length)
        weight_N = torch.from_numpy(weights).to(self._device)
        count = int((weights > 0).sum())
        valued = count if constants.valued_N is None else int((constants.valued_N & (weight_N > 0)).sum())
        update, mismatch, largest = (MetricSums(self._device, reduce) for reduce in ("sum", "sum", "max"))
        micro_batches = 0
        shares = self._partition(batch.forest, batch.forest.of(examples))
        for micro in self._micro_batches(batch.forest, shares):
            micro_batches += 1
            with phase("reference"):
                reference_N = self._reference_logp(micro, constants)
            with phase("forward"):
                logp_N = _forward(self._policy, micro, replays=True)
                if kept_N is not None:
                    kept_N[micro.index_N] = logp_N.detach().to(kept_N.dtype)
                loss, reported = policy_loss(settings, micro, constants, logp_N, reference_N, weight_N)
            with phase("backward"):
                (loss / count).backward()
            if self._critic is not None and settings.critic is not None:
                with phase("critic"):
                    value_loss = critic_loss(
                        settings.critic.value_clip, micro, constants, _forward(self._critic, micro), weight_N
                    )
                    (value_loss / valued).backward()
                update.add({"critic/loss": value_loss * (count / valued)})
            update.add(reported.update | {"tokens": torch.tensor(micro.forwarded, device=self._device)})
            mismatch.add(reported.mismatch)
            largest.add(reported.largest)
        sums = update.gather()
        forwarded = sums.pop("tokens")
        means = {name: value / count for name, value in sums.items()}
        means["update/loss"] = means["update/pg_loss"] + settings.kl_coefficient * means["update/kl"]
        # Without the trainer's log-probs before the first step, a later one would measure the policy's drift as mismatch.
        first = settings.old != "trainer"
        apart = {name: value / count for name, value in mismatch.gather().items()}
        apart["mismatch/ess_share"] = ess_share(apart.pop(WEIGHT), apart.pop(SQUARE))
        return (
            of(means | {"update/imbalance": shares.imbalance}, "mean")
            | of(apart, "first" if first else "mean")
            | of(largest.gather(), "first" if first else "max")
            | of({"update/forwarded_tokens": forwarded, "update/micro_batches": float(micro_batches)}, "sum")
        )

    def logprobs(self, tree: PackedTree) -> list[float]:
        """Return the log-probs of a tree's targets under the policy."""
        with torch.no_grad():
            return _forward(self._policy, self._moved(tree, self._policy)).tolist()

    def action_logprobs(self, forest: Forest, actions: Sequence[int]) -> list[list[float]]:
        """Return the log-probs of the tokens of some actions under the policy, by action. Each rank forwards its share."""
        logp_N = torch.zeros(forest.targets, dtype=torch.float64, device=self._device)
        with torch.no_grad():
            for micro in self._micro_batches(forest, self._partition(forest, actions)):
                logp_N[micro.index_N] = _forward(self._policy, micro).double()
        dist.all_reduce(logp_N)
        chosen = [forest.actions[number] for number in actions]
        return [logp_N[each.first : each.first + len(each.logprobs_T)].tolist() for each in chosen]

    def _partition(self, forest: Forest, actions: Sequence[int], shape: PolicyModel | None = None) -> Partition:
        model = shape or self._policy
        with self._timer.phase("pack"):
            budget = self._settings.tokens_per_micro_batch
            return partition(forest, actions, self._ranks.count, budget, cost_of(model.lm), model.how.paths)

    def _micro_batches(self, forest: Forest, shares: Partition, shape: PolicyModel | None = None) -> Iterator[MicroBatch]:
        """Yield the micro-batches of this rank; every rank has the same number."""
        for actions in shares.actions_by_rank[self._ranks.rank]:
            with self._timer.phase("pack"):
                micro = self._moved(forest.pack(actions), shape or self._policy)
            yield micro

    def _moved(self, tree: PackedTree, model: PolicyModel) -> MicroBatch:
        return to_device(tree, self._device, model.how.paths, model.how.packed)

    def _reference_logp(self, micro: MicroBatch, constants: BatchConstants) -> Tensor | None:
        """Return the log-probs of the reference in the loss's KL; None without a KL in the loss."""
        if self._reference is None or self._settings.kl_in_reward:
            return None
        if constants.reference_N is not None:
            return constants.reference_N[micro.index_N]
        with torch.no_grad():
            return _forward(self._reference, micro)


def _forward(model: PolicyModel | Unadapted | Critic, micro: MicroBatch, replays: bool = False) -> Tensor:
    """Return the log-probs of the targets, or the values of the states in which they were sampled. The policy as it sampled
    `replays` the experts that the engine chose.
    """
    inputs = (micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N)
    if isinstance(model, PolicyModel) and replays:
        out_N: Tensor = model(*inputs, micro.target_N, micro.route_TX)
    else:
        out_N = model(*inputs) if isinstance(model, Critic) else model(*inputs, micro.target_N)
    root = model.policy_model if isinstance(model, Unadapted) else model
    if isinstance(root, FSDPModule) and not torch.is_grad_enabled():
        root.reshard()  # otherwise the full embedding would stay on every rank
    return out_N
