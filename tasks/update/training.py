"""The optimiser steps of a batch."""

from collections.abc import Mapping

from tasks.update import checkpoint
from tasks.update.batch import Batch
from tasks.update.known import Known
from tasks.update.minibatches import minibatches
from tasks.update.passes import Passes
from tasks.update.phases import Phases
from tasks.update.settings import UpdateSettings
from tasks.update.tally import over_steps
from tasks.update.targets import Targets
from tasks.update.trainee import Trainee


def train(
    settings: UpdateSettings,
    passes: Passes,
    trainees: Mapping[str, Trainee],
    phases: Phases,
    batch: Batch,
    known: Known,
    seed: int,
) -> tuple[dict[str, float], str]:
    """Collective. Every optimiser step of the batch: the metrics, and why steps were not taken. `seed` is the minibatches'."""
    targets = Targets.of(batch.forest)
    shares = minibatches(batch.groups, targets, settings.epochs, settings.minibatches, seed)
    steps, reasons = [], []
    for number, examples in enumerate(shares):
        figures = passes.gradient(batch, known, targets, examples)
        for name, trainee in trainees.items():
            with phases.phase("step"):
                room = "update" if name == checkpoint.STATE else name
                stepped = trainee.step(figures[f"{room}/loss"])
            skipped = float(bool(stepped.skipped))
            figures |= {f"{room}/grad_norm": stepped.grad_norm, f"{room}/lr": stepped.lr, f"{room}/skipped": skipped}
            if stepped.skipped:
                where = f"step {number + 1} of {len(shares)}: " if len(shares) > 1 else ""
                reasons.append(f"{where}{'' if room == 'update' else 'critic: '}{stepped.skipped}")
        steps.append(figures)
    metrics = over_steps(steps, mismatch_drifts=settings.engine_is_old)
    metrics |= {
        "update/trajectories": float(batch.examples),
        "update/sampled_tokens": float(batch.forest.targets),
        "update/unique_tokens": float(batch.forest.tokens),
        "update/steps": float(len(shares)) - metrics["update/skipped"],
    }
    return metrics, "; ".join(reasons)
