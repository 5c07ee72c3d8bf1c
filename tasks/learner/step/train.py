"""The optimiser steps of a batch."""

from collections.abc import Mapping

from nbrl.tasks.layout import STATE
from nbrl.tasks.learner.batch.batch import Batch
from nbrl.tasks.learner.batch.minibatches import minibatches
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.process.timing import Timer
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.learner.step.batch_constants import BatchConstants
from nbrl.tasks.learner.step.optimizer import OptimizedModel
from nbrl.tasks.learner.step.passes import Passes
from nbrl.tasks.metrics import Metric, reduce


def train(
    settings: UpdateSettings,
    passes: Passes,
    models: Mapping[str, OptimizedModel],
    timer: Timer,
    batch: Batch,
    constants: BatchConstants,
    seed: int,
) -> tuple[dict[str, float], str]:
    """Collective. Take all optimiser steps of the batch; return metrics and why steps were skipped. `seed` is for minibatches."""
    targets = Targets.of(batch.forest)
    shares = minibatches(batch.groups, targets, settings.epochs, settings.minibatches, seed)
    steps, reasons = [], []
    for number, examples in enumerate(shares):
        figures = passes.gradient(batch, constants, targets, examples)
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
    return metrics, "; ".join(reasons)
