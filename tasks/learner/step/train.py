"""The optimiser steps of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from nbrl.tasks.layout.checkpoints import STATE
from nbrl.tasks.learner.arrays import Floats
from nbrl.tasks.learner.batch.batch import Batch, minibatches
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.process.ranks import Timer
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.learner.step.batch_constants import BatchConstants
from nbrl.tasks.learner.step.optimizer import OptimizedModel
from nbrl.tasks.learner.step.passes import Passes
from nbrl.tasks.learner.step.proving import gather_token_logprobs
from nbrl.tasks.metrics import Metric, reduce


@dataclass(frozen=True)
class StepReport:
    """The report of the steps of a batch. `skipped` says why steps were not taken. `before_N` are log-probs of the sampled tokens
    before the first step, NaN where they are not known.
    """

    metrics: dict[str, float]
    skipped: str
    before_N: Floats


def train(
    settings: UpdateSettings,
    passes: Passes,
    models: Mapping[str, OptimizedModel],
    timer: Timer,
    batch: Batch,
    constants: BatchConstants,
    seed: int,
    steps_wanted: int | None = None,
) -> StepReport:
    """Collective. Take all optimiser steps of the batch, or so many in one pass. `seed` is for minibatches."""
    targets = Targets.of(batch.forest)
    epochs, count = (settings.epochs, settings.minibatches) if steps_wanted is None else (1, steps_wanted)
    shares = minibatches(batch.groups, targets, epochs, count, seed)
    steps, reasons = [], []
    first_N = torch.zeros_like(constants.action_N, dtype=torch.float32)
    for number, examples in enumerate(shares):
        figures = passes.gradient(batch, constants, targets, examples, None if number else first_N)
        for name, model in models.items():
            with timer.phase("step"):
                prefix = "update" if name == STATE else name
                stepped = model.step(figures[f"{prefix}/loss"].value)
            figures[f"{prefix}/grad_norm"] = Metric(stepped.grad_norm)
            figures[f"{prefix}/lr"] = Metric(stepped.lr, "last")
            figures[f"{prefix}/skipped"] = Metric(float(bool(stepped.skipped)), "sum")
            if stepped.skipped:
                where = f"step {number + 1} of {len(shares)}: " if len(shares) > 1 else ""
                reasons.append(f"{where}{'' if prefix == 'update' else 'critic: '}{stepped.skipped}")
        steps.append(figures)
    metrics = reduce(steps)
    metrics |= {
        "update/trajectories": float(batch.examples),
        "update/sampled_tokens": float(batch.forest.targets),
        "update/unique_tokens": float(batch.forest.tokens),
        "update/steps": float(len(shares)) - metrics["update/skipped"],
    }
    return StepReport(metrics, "; ".join(reasons), gather_token_logprobs(constants, targets, shares[0], first_N))
