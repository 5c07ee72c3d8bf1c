"""record: metrics and traces to MLflow, then `record.json`, whose presence means that the iteration happened."""

import asyncio
import time
from collections.abc import Mapping

from prefect.artifacts import acreate_table_artifact
from pydantic import BaseModel, ConfigDict

from agent.trajectory import from_table
from tasks.node import act
from tasks.parts import Parts
from tasks.scope import Artifact, Scope
from tasks.traces import log_traces


class Record(BaseModel):
    """What an iteration leaves. `cursor` is the first prompt of the next one; `checkpoint` is what it published."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    iteration: int
    cursor: int
    checkpoint: str
    artifacts: list[Artifact]
    metrics: dict[str, float]


def record_path(scope: Scope) -> str:
    return f"{scope.folder}/record.json"


def read_record(parts: Parts, scope: Scope) -> Record | None:
    path = record_path(scope)
    return Record.model_validate_json(parts.storage.read_bytes(path)) if parts.storage.exists(path) else None


def merge(artifacts: list[Artifact]) -> dict[str, float]:
    """Metrics of all artifacts: counts of several rounds add up, means are weighted by nothing and averaged."""
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
    # A node found done took no time now, whatever it took when it ran.
    work = min(metrics["rollout/busy_seconds"], seconds["rollout"]) + min(metrics["update/compute_seconds"], seconds["update"])
    return {f"time/{name}": value for name, value in seconds.items()} | {
        "time/iteration": wall,
        "time/overhead": wall - work,
        "time/overhead_share": (wall - work) / wall,
    }


@act
async def record(
    parts: Parts,
    scope: Scope,
    artifacts: list[Artifact],
    trajectories: Artifact,
    cursor: int,
    seconds: Mapping[str, float],
    started: float,
) -> Record:
    """Close the iteration. `seconds` are the nodes' wall times so far, `started` the iteration's start on the monotonic clock."""
    begun = time.monotonic()
    metrics = merge(artifacts)
    step = scope.iteration + 1
    checkpoint = scope.checkpoint(step)
    chosen = from_table(parts.storage.read_table(trajectories.path).slice(0, parts.config.record.traces))

    def track() -> None:
        parts.tracking.log_checkpoint(
            f"{scope.run}-{step:06d}", parts.storage.uri(checkpoint), {"reward/em": metrics["reward/em"]}, step
        )
        log_traces(parts.tracking, scope, chosen)

    await asyncio.to_thread(track)
    rows = [{"metric": key, "value": round(value, 6)} for key, value in sorted(metrics.items())]
    await acreate_table_artifact(
        rows, key=f"iteration-{scope.iteration}", description=f"{scope.run}, iteration {scope.iteration}"
    )
    metrics |= time_metrics({**seconds, "record": time.monotonic() - begun}, metrics, started)
    await asyncio.to_thread(parts.tracking.log_metrics, metrics, step)
    done = Record(iteration=scope.iteration, cursor=cursor, checkpoint=checkpoint, artifacts=artifacts, metrics=metrics)
    parts.storage.write_bytes(record_path(scope), done.model_dump_json(indent=1).encode())
    return done
