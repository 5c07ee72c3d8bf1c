"""record: writes metrics and traces to MLflow, then `record.json`, whose presence means that the iteration happened."""

import asyncio
import time
from collections.abc import Mapping

from prefect.artifacts import acreate_table_artifact

from nbrl.agent.trajectory import from_table
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.metrics import reduce
from nbrl.tasks.nodes.durable import effect
from nbrl.tasks.nodes.traces import log_traces
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


def overhead(metrics: Mapping[str, float], wall: float) -> dict[str, float]:
    """The part of an iteration's `wall` seconds that was neither generation, cell execution nor the update's computation."""
    # A node whose result was reused took no time in this attempt; an iteration without signal has no update.
    work = min(metrics["rollout/busy_seconds"], metrics["time/rollout"])
    work += min(metrics.get("update/compute_seconds", 0.0), metrics.get("time/update", 0.0))
    return {"time/iteration": wall, "time/overhead": wall - work, "time/overhead_share": (wall - work) / wall}


@effect
async def record(
    services: Services,
    scope: Scope,
    artifacts: list[Artifact],
    trajectories: Artifact,
    cursor: int,
    started: float,
    skipped: str = "",
) -> Record:
    """Close the iteration. `started` is its start on the monotonic clock, `skipped` says why nothing was learned."""
    begun = time.monotonic()
    metrics = reduce(artifact.metrics for artifact in artifacts) | ({"select/no_signal": 1.0} if skipped else {})
    step = scope.iteration + 1
    updates = scope.updates + ("update/steps" in metrics)
    checkpoint = scope.checkpoint(updates) if updates else ""

    def track() -> None:
        chosen = from_table(services.read(trajectories).slice(0, services.config.record.traces))
        if updates > scope.updates:
            scores = {"reward/em": metrics["reward/em"]}
            services.tracking.log_checkpoint(f"{scope.run}-{updates:06d}", services.storage.uri(checkpoint), scores, step)
        log_traces(services.tracking, scope, chosen)

    await asyncio.to_thread(track)
    rows = [{"metric": key, "value": round(value, 6)} for key, value in sorted(metrics.items())]
    await acreate_table_artifact(
        rows, key=f"iteration-{scope.iteration}", description=f"{scope.run}, iteration {scope.iteration}"
    )
    metrics |= {"time/record": time.monotonic() - begun} | overhead(metrics, time.monotonic() - started)
    await asyncio.to_thread(services.tracking.log_metrics, metrics, step)
    done = Record(
        iteration=scope.iteration,
        cursor=cursor,
        checkpoint=checkpoint,
        artifacts=artifacts,
        metrics=metrics,
        skipped=skipped,
        run_id=scope.run_id,
    )
    if not await asyncio.to_thread(services.storage.create_json, scope.layout.record, done.model_dump(mode="json")):
        raise BrokenInvariantError(
            f"iteration {step} of run {scope.run!r} was recorded by another process; end all but one that train "
            "it, and go on with the same command"
        )
    return done
