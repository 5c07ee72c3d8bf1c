"""publish: makes every engine serve the new weights, and proves that it does."""

import asyncio
import time
from collections.abc import Sequence

from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.layout.stages import is_update_result
from nbrl.tasks.learner.proof import Mismatch, Proof
from nbrl.tasks.metrics import Metric
from nbrl.tasks.nodes.durable import effect
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.fleet import Finding
from nbrl.tasks.services.services import Services

SHOWN = 3  # tensors that differ


@effect
async def publish(services: Services, scope: Scope, update: Artifact, earlier: Mismatch | None = None) -> Artifact:
    """Swap the engines to the checkpoint that `update` made, then prove that they serve it.

    The mismatch of engine and trainer is compared with that before the update: in the batch, or, where older weights sampled it,
    with the `earlier` one, of the weights before this update when they were published.

    Raises BrokenInvariantError if an engine returns another version, holds other weights than the checkpoint's files, or gives
    other log-probs than the trainer.
    """
    started = time.monotonic()
    version = str(scope.updates + 1)
    checkpoint = services.checkpoint(update.path)
    await services.engines.publish(checkpoint, version, services.weight_source)
    swapped = time.monotonic()
    key = next(filter(is_update_result, update.parts))
    result = await asyncio.to_thread(services.storage.read_json, key)
    proof = Proof.model_validate(result["proof"])
    if proof.before is None:
        services.progress.say(
            f"log-probs before the update to weights {version} are not known: theirs cannot be judged, only their bits are"
        )
    findings = await services.engines.prove(checkpoint, version, proof.sequences)
    for finding in findings:
        _check_weights(finding, version, f"{update.path}/{HF}")
    config = services.config
    metrics = {
        "publish/tensors_proved": Metric(min(finding.weights.equal if finding.weights else 0 for finding in findings), "last"),
        "publish/swap_seconds": Metric(swapped - started, "sum"),
        "publish/proof_seconds": Metric(time.monotonic() - swapped, "sum"),
    }
    if proof.before is not None:
        metrics |= _judged(findings, earlier or proof.before, config.mismatch_floor, config.publish.tolerance, version)
    return Artifact(path=update.path, digest=update.digest, metrics=metrics)


def _check_weights(finding: Finding, version: str, files: str) -> None:
    """Raises BrokenInvariantError if the engine holds other bits than the files."""
    if finding.weights is None or not finding.weights.different:
        return
    names = finding.weights.different
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise BrokenInvariantError(
        f"after publishing {version!r} the weights of engine {finding.engine} are not bit for bit those of {files} in the "
        f"engine's dtype: {', '.join(names[:SHOWN])}{more} differ, so they are stale, half-loaded or wrongly rounded; continue "
        "the run, which publishes them again, and if that does not help look into the engine's log"
    )


def _judged(findings: list[Finding], before: Mismatch, floor: Mismatch, tolerance: float, version: str) -> dict[str, Metric]:
    """Return the mismatch of the worst engine as metrics. Raises BrokenInvariantError if it is beyond the tolerance."""
    mismatches = [Mismatch.of(finding.differences) for finding in findings]
    ratios = [each.times(before, floor) for each in mismatches]
    for finding, now, ratio in zip(findings, mismatches, ratios, strict=True):
        if ratio <= tolerance:
            continue
        whole = finding.weights is not None and not (finding.weights.unproved or finding.weights.why)
        cause = (
            "its weights are bit for bit the published files, so the files are rounded too far or the engine computes otherwise: "
            "compare publish.dtype, engine.dtype and update.dtype, or raise publish.tolerance"
            if whole
            else "its weights may not have arrived whole: continue the run, which publishes them again"
        )
        raise BrokenInvariantError(
            f"after publishing {version!r} the log-probs of {len(finding.differences)} sampled tokens differ between engine "
            f"{finding.engine} and trainer by {now.mean:.2g} nats in the mean and {now.high:.2g} in the 99th percentile, "
            f"{ratio:.3g} times as much as before the update ({before.mean:.2g} and {before.high:.2g}, counted as {floor.mean:g} "
            f"and {floor.high:g} at least), and publish.tolerance is {tolerance:g}; {cause}"
        )
    return {
        "publish/mismatch_mean_abs": Metric(max(each.mean for each in mismatches), "max"),
        "publish/mismatch_p99_abs": Metric(max(each.high for each in mismatches), "max"),
        "publish/mismatch_ratio": Metric(max(ratios), "max"),
        "publish/mismatch_tokens": Metric(len(findings[0].differences), "sum"),
    }


def published_mismatch(records: Sequence[Record]) -> Mismatch:
    """Return the mismatch of engine and trainer when the weights after these records were published; None for the run's first."""
    names = ("publish/mismatch_mean_abs", "publish/mismatch_p99_abs")
    for record in reversed(records):
        if all(name in record.metrics for name in names):
            return Mismatch(mean=record.metrics[names[0]], high=record.metrics[names[1]])
    return Mismatch(mean=0.0, high=0.0)
