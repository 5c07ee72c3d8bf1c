"""update: takes the optimiser steps on the selected trajectories."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from nbrl.infra.errors import DamagedCheckpointError, DamagedError, MissingError
from nbrl.infra.manifest import part_digest
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.checkpoints import HF, TOKEN_LOGPROBS, updates_of
from nbrl.tasks.learner.checkpoint.identity import repeats
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder, UpdateResult
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import damaged_checkpoint
from nbrl.tasks.runs.run import find_run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.seeds import derive_seed
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
    try:
        result = await services.learner.update(make_order(services.config, scope, advantages, trajectories, staleness))
    except DamagedCheckpointError as error:
        raise await asyncio.to_thread(_damaged, services.storage, scope, error) from error
    if result.skipped:
        services.progress.say(f"iteration {scope.iteration + 1}: an optimiser step was skipped, {result.skipped}")
    if repeated := result.metrics.get("update/repeated"):
        services.progress.say(f"{repeated:g} earlier updates were repeated: the newest checkpoint had no optimiser's state")
    return await asyncio.to_thread(_keep, services.storage, scope, result)


def _damaged(storage: Storage, scope: Scope, error: DamagedCheckpointError) -> DamagedError:
    """The error, with how to make again what is damaged: the checkpoint whose state the update goes on from, or the newest."""
    run, weights = find_run(storage, scope.run), scope.weights
    if run is None:
        return error
    with suppress(DamagedError, MissingError):
        if base := repeats(storage, weights.checkpoint).base:
            weights = Weights(updates=updates_of(base), checkpoint=base)
    return damaged_checkpoint(storage, run, weights, error)


def make_order(
    config: RunConfig, scope: Scope, advantages: Artifact, trajectories: list[Artifact], staleness: int
) -> UpdateOrder:
    """The order to the learner that makes the next checkpoint."""
    return UpdateOrder(
        iteration=scope.iteration,
        seed=derive_seed(scope.seed, scope.iteration, "update"),
        trajectories=[StoredTable(key=each.path, digest=each.digest) for each in trajectories],
        advantages=StoredTable(key=advantages.path, digest=advantages.digest),
        estimator=config.advantage if config.learner_estimates else None,
        initial="" if scope.updates else scope.weights.digest,
        checkpoint_in=scope.weights.checkpoint if scope.updates else None,
        checkpoint_out=scope.next_checkpoint,
        dtype=config.published_dtype,
        staleness=staleness if config.update.old == "interpolated" else 0,
        rounding=config.publish.rounding,
        state=_state(config, scope),
    )


def _state(config: RunConfig, scope: Scope) -> Literal["later", "none"]:
    """The run's last checkpoint has a state too, for a run that is given more iterations."""
    last = scope.iteration + 1 == config.iterations
    return "later" if last or (scope.updates + 1) % config.checkpoints.state_every == 0 else "none"


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
