"""update: takes the optimiser steps on the selected trajectories."""

import asyncio
from collections.abc import Mapping

from nbrl.infra.errors import DamagedCheckpointError, DamagedError
from nbrl.infra.manifest import part_digest
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.checkpoints import HF, TOKEN_LOGPROBS, updates_of
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.history import damaged_checkpoint
from nbrl.tasks.runs.orders import make_order, since_state
from nbrl.tasks.runs.run import Run, find_run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.services.services import Services

COMPUTING = ("old", "reference", "value", "forward", "backward", "critic", "step")


@durable
async def update(
    services: Services, scope: Scope, advantages: Artifact, trajectories: list[Artifact], staleness: int = 0
) -> Artifact:
    """Make the checkpoint after the optimiser steps on all trajectories of the advantage table, which were sampled from weights
    that are `staleness` updates older than those of `scope`.
    """
    if not services.config.pipeline.lag:  # else rollouts go on
        await services.engines.lend_memory()
    run = await asyncio.to_thread(find_run, services.storage, scope.run)
    repeats = await asyncio.to_thread(since_state, services.storage, services.config, run, scope.weights) if run else []
    order = make_order(services.config, scope, advantages, trajectories, staleness, repeats)
    try:
        result = await services.learner.update(order)
    except DamagedCheckpointError as error:
        if run is None:
            raise
        raise await asyncio.to_thread(_damaged, services.storage, run, scope, order, error) from error
    if result.skipped:
        services.progress.say(f"iteration {scope.iteration + 1}: an optimiser step was skipped, {result.skipped}")
    if repeated := result.metrics.get("update/repeated"):
        services.progress.say(f"{repeated:g} earlier updates were repeated: the newest checkpoint had no optimiser's state")
    return await asyncio.to_thread(_keep, services.storage, scope, result)


def _damaged(storage: Storage, run: Run, scope: Scope, order: UpdateOrder, error: DamagedCheckpointError) -> DamagedError:
    """The error, with how to make again what is damaged: the checkpoint whose state the update goes on from."""
    base, weights = order.base, scope.weights
    if base is not None and base != weights.checkpoint:
        weights = Weights(updates=updates_of(base), checkpoint=base)
    return damaged_checkpoint(storage, run, weights, error)


def _keep(storage: Storage, scope: Scope, result: UpdateResult) -> Artifact:
    """The finished checkpoint, and beside it what publish must prove."""
    checkpoint = scope.next_checkpoint
    manifest = storage.read_manifest(checkpoint)
    summary = {"proof": result.proof.model_dump(), "metrics": result.metrics}
    result_key, logprobs_key = scope.layout.update_result, scope.layout.token_logprobs
    logprobs = storage.read_bytes(f"{checkpoint}/{TOKEN_LOGPROBS}", manifest[TOKEN_LOGPROBS])
    parts = {
        result_key: storage.write_json(result_key, summary),
        logprobs_key: storage.write_bytes(logprobs_key, logprobs),
    }
    return Artifact(
        path=checkpoint,
        digest=part_digest(manifest, f"{HF}/"),
        parts=parts,
        metrics=of(update_metrics(result.metrics), "last"),
    )


def update_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The learner's metrics, its phases under `update/`, with the seconds that are the update's own computation."""
    renamed = {f"update/{key}" if key.startswith("seconds/") else key: value for key, value in metrics.items()}
    return renamed | {
        "update/compute_seconds": sum(metrics[f"seconds/{phase}"] for phase in COMPUTING if f"seconds/{phase}" in metrics)
    }
