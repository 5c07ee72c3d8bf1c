"""record: metrics and traces to MLflow, then `record.json`, whose presence means that the iteration happened."""

import asyncio
import time
from collections.abc import Mapping

from prefect.artifacts import acreate_table_artifact

from nbrl.agent.trajectory import from_table
from nbrl.tasks.nodes.durable import act
from nbrl.tasks.nodes.traces import log_traces
from nbrl.tasks.runs.history import Record, record_path
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


def merge(artifacts: list[Artifact]) -> dict[str, float]:
    """Metrics of all artifacts: counts are summed over rounds, means are averaged without weights."""
    gathered: dict[str, list[float]] = {}
    for artifact in artifacts:
        for key, value in artifact.metrics.items():
            gathered.setdefault(key, []).append(value)
    return {
        key: sum(values) if key.startswith(("rollout/", "select/")) else sum(values) / len(values)
        for key, values in gathered.items()
    }


def time_metrics(seconds: Mapping[str, float], metrics: Mapping[str, float], started: float) -> dict[str, float]:
    """Wall seconds by node and the share that is neither generation, cell execution nor the update's own computation."""
    wall = time.monotonic() - started
    # A node found done took no time now, whatever it took when it ran; an iteration that taught nothing has no update.
    work = min(metrics["rollout/busy_seconds"], seconds["rollout"])
    work += min(metrics.get("update/compute_seconds", 0.0), seconds.get("update", 0.0))
    return {f"time/{name}": value for name, value in seconds.items()} | {
        "time/iteration": wall,
        "time/overhead": wall - work,
        "time/overhead_share": (wall - work) / wall,
    }


@act
async def record(
    services: Services,
    scope: Scope,
    artifacts: list[Artifact],
    trajectories: Artifact,
    cursor: int,
    seconds: Mapping[str, float],
    started: float,
    skipped: str = "",
) -> Record:
    """Close the iteration. `seconds` are the nodes' wall times so far, `started` the iteration's start on the monotonic clock,
    `skipped` is why nothing was learned.
    """
    begun = time.monotonic()
    metrics = merge(artifacts) | ({"select/no_signal": 1.0} if skipped else {})
    step = scope.iteration + 1
    updates = scope.updates + ("update/steps" in metrics)
    checkpoint = scope.checkpoint(updates) if updates else ""
    chosen = from_table(services.storage.read_table(trajectories.path).slice(0, services.config.record.traces))

    def track() -> None:
        if updates > scope.updates:
            scores = {"reward/em": metrics["reward/em"]}
            services.tracking.log_checkpoint(f"{scope.run}-{updates:06d}", services.storage.uri(checkpoint), scores, step)
        log_traces(services.tracking, scope, chosen)

    await asyncio.to_thread(track)
    rows = [{"metric": key, "value": round(value, 6)} for key, value in sorted(metrics.items())]
    await acreate_table_artifact(
        rows, key=f"iteration-{scope.iteration}", description=f"{scope.run}, iteration {scope.iteration}"
    )
    metrics |= time_metrics({**seconds, "record": time.monotonic() - begun}, metrics, started)
    await asyncio.to_thread(services.tracking.log_metrics, metrics, step)
    done = Record(
        iteration=scope.iteration, cursor=cursor, checkpoint=checkpoint, artifacts=artifacts, metrics=metrics, skipped=skipped
    )
    services.storage.write_bytes(record_path(scope), done.model_dump_json(indent=1).encode())
    return done
