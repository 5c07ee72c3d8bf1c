"""record: creates `record.json`, whose presence means that the iteration happened."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from prefect.artifacts import acreate_table_artifact

from nbrl.infra.errors import InfraError
from nbrl.infra.storage import Storage
from nbrl.tasks.metrics import reduce
from nbrl.tasks.nodes.durable import effect, slug
from nbrl.tasks.rollout.stream import age_shares
from nbrl.tasks.runs.epochs import check_newest
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.results import merge
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.runs.sweep import sweep_stage
from nbrl.tasks.services.services import Services


class Timing(NamedTuple):
    """An iteration began at `started` on the monotonic clock; for so many seconds rollouts ran alone, or beside the update."""

    started: float
    alone_s: float
    beside_s: float = 0.0


def seconds_of(prompts: Sequence[Artifact], trajectories: Sequence[Artifact]) -> float:
    """Return the seconds in which the episodes of these rounds ran, here or elsewhere, as far as they did in this attempt."""
    values = [each.values for each in trajectories]
    taken = sum(each.get("time/rollout", 0.0) + each.get("time/branch", 0.0) for each in values)
    here = min(sum(each["rollout/busy_seconds"] for each in values), taken)
    return here + sum(min(each.values.get("sample/waiting_seconds", 0.0), each.values["time/sample"]) for each in prompts)


def times(metrics: Mapping[str, float], timing: Timing, wall: float) -> dict[str, float]:
    """Return the parts of an iteration's `wall` seconds. Overhead is neither generation, cell execution nor update."""
    # A node whose result was reused took no time in this attempt; an iteration without signal has no update.
    update_s = min(metrics.get("update/compute_seconds", 0.0), metrics.get("time/update", 0.0))
    overhead = wall - timing.alone_s - max(timing.beside_s, update_s)
    return {
        "time/iteration": wall,
        "time/overhead": overhead,
        "time/overhead_share": overhead / wall,
        "pipeline/idle_learner": 1 - update_s / wall,
        "pipeline/idle_rollout": 1 - (timing.alone_s + timing.beside_s) / wall,
        "pipeline/overlap": min(timing.beside_s, update_s) / wall,
    }


def lengths(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return how much longer the trajectories are that were learned from than all that were sampled, in sampled tokens."""
    names = ("update/sampled_tokens", "update/trajectories", "rollout/sampled_tokens", "rollout/trajectories")
    trained, trajectories, sampled, admitted = (metrics.get(name, 0.0) for name in names)
    return {"pipeline/trained_over_admitted_tokens": trained * admitted / trajectories / sampled} if trained and sampled else {}


def ages(index: pa.Table, updates: int) -> dict[str, float]:
    """Return mean age and shares by age of the sampled tokens: `updates` less those of the weights that sampled."""
    tokens: dict[int, int] = {}
    for versions, count in zip(index["versions"].to_pylist(), index["sampled_tokens"].to_pylist(), strict=True):
        for version in versions:  # one: the rollout refuses others
            tokens[updates - int(version)] = tokens.get(updates - int(version), 0) + count
    return age_shares(tokens)


@effect
async def record(
    services: Services,
    scope: Scope,
    artifacts: list[Artifact],
    cursor: int,
    timing: Timing,
    trajectories: list[Artifact],
    updated: Artifact | None = None,
    skipped: str = "",
) -> Record:
    """Close the iteration of these `trajectories`, of which `updated` is the checkpoint if there was an update.

    `skipped` says why nothing was learned. Raises TakenOverError if another process has taken the run over, and InfraError if
    one has recorded this iteration.
    """
    begun = time.monotonic()
    metrics = reduce(artifact.metrics for artifact in artifacts) | ({"select/no_signal": 1.0} if skipped else {})
    policy = scope.weights
    if updated is not None:
        policy = Weights(updates=scope.updates + 1, checkpoint=updated.path, digest=updated.digest)
    rows = [{"metric": key, "value": round(value, 6)} for key, value in sorted(metrics.items())]
    await acreate_table_artifact(
        rows, key=f"{slug('run', scope.run)}-iteration-{scope.iteration + 1}", description=f"{scope.run}, {scope.title}"
    )
    metrics |= lengths(metrics)
    if not services.config.pipeline.stream:  # in which a trajectory has tokens of several ages
        metrics |= await asyncio.to_thread(_ages, services.storage, trajectories, scope.updates)
    metrics |= {"time/record": time.monotonic() - begun} | times(metrics, timing, time.monotonic() - timing.started)
    done = Record(
        iteration=scope.iteration,
        cursor=cursor,
        checkpoint=policy.checkpoint,
        artifacts=artifacts,
        metrics=metrics,
        skipped=skipped,
        run_id=scope.run_id,
        epoch=scope.epoch,
        finished=time.time(),
        weights=policy.digest,
    )
    await asyncio.to_thread(_commit, services.storage, scope, done)
    services.delivery.wake()
    return done


def _ages(storage: Storage, trajectories: Sequence[Artifact], updates: int) -> dict[str, float]:
    rounds = [storage.read_index(each.path, each.digest) for each in trajectories]
    return ages(pa.concat_tables(rounds).select(["versions", "sampled_tokens"]), updates)


def _commit(storage: Storage, scope: Scope, done: Record) -> None:
    check_newest(storage, scope.run_layout, scope.epoch)
    fields = done.model_dump(mode="json")
    if not storage.create_json(scope.layout.record, fields):
        raise InfraError(
            f"iteration {scope.iteration + 1} of run {scope.run!r} was recorded by another process; the same command continues "
            "from there"
        )
    check_newest(storage, scope.run_layout, scope.epoch)  # the copy and the sweep must not disturb a process that took over
    sweep_stage(storage, scope.layout, done.artifacts)
    merge(storage, scope.layout, done.artifacts)
    storage.write_json(scope.layout.record_copy, fields)  # last: where it is, the stage was swept
