"""update: takes the optimiser steps on the selected trajectories."""

import asyncio
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.settings import Credit
from nbrl.infra.errors import DamagedCheckpointError, DamagedError
from nbrl.infra.manifest import part_digest
from nbrl.infra.storage import Storage
from nbrl.tasks.advantage.children import of_children
from nbrl.tasks.advantage.estimate import ADVANTAGES_SCHEMA, REWARDS_SCHEMA, ROUNDING, estimate
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout.branches import own_steps_from
from nbrl.tasks.layout.checkpoints import HF, TOKEN_LOGPROBS, updates_of
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.metrics import Metric, of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.history import damaged_checkpoint
from nbrl.tasks.runs.orders import make_order, since_state
from nbrl.tasks.runs.run import Run, find_run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.selection.judge import TRAJECTORIES
from nbrl.tasks.services.services import Services

COMPUTING = ("old", "reference", "value", "forward", "backward", "critic", "step")


@durable
async def update(
    services: Services,
    scope: Scope,
    advantages: Artifact,
    trajectories: list[Artifact],
    staleness: int = 0,
    taught: Artifact | None = None,
) -> Artifact:
    """Make the checkpoint after the optimiser steps on all trajectories of the advantage table, which were sampled from weights
    that are `staleness` updates older than those of `scope`, and which a teacher may have `taught`.
    """
    if not services.config.pipeline.lag:  # else rollouts go on
        await services.engines.lend_memory()
    run = await asyncio.to_thread(find_run, services.storage, scope.run)
    repeats = await asyncio.to_thread(since_state, services.storage, services.config, run, scope.weights) if run else []
    order = make_order(services.config, scope, advantages, trajectories, staleness, repeats, taught)
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
    """Return the error, with how to make again what is damaged: the checkpoint whose state the update goes on from."""
    base, weights = order.base, scope.weights
    if base is not None and base != weights.checkpoint:
        weights = Weights(updates=updates_of(base), checkpoint=base)
    return damaged_checkpoint(storage, run, weights, error)


def _keep(storage: Storage, scope: Scope, result: UpdateResult) -> Artifact:
    """Return the finished checkpoint, and beside it what publish must prove."""
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
    """Return the learner's metrics, its phases under `update/`, with the seconds that are the update's own computation."""
    renamed = {f"update/{key}" if key.startswith("seconds/") else key: value for key, value in metrics.items()}
    return renamed | {
        "update/compute_seconds": sum(metrics[f"seconds/{phase}"] for phase in COMPUTING if f"seconds/{phase}" in metrics)
    }


def advantage_table(rewards: list[dict], settings: AdvantageSettings, credit: Credit | None = None) -> pa.Table:
    """Return rows of ADVANTAGES_SCHEMA for the reward rows, with those of children where there is a `credit` for them. A
    trajectory without a step has no row, but counts in its group.
    """
    if not any(reward["step_rewards"] for reward in rewards):
        return ADVANTAGES_SCHEMA.empty_table()
    names = [r["trajectory"] for r in rewards]
    arrays = estimate([r["step_rewards"] for r in rewards], [r["group"] for r in rewards], settings, names)
    if credit is not None:
        below = of_children(rewards, arrays, settings, credit)
        arrays = [np.concatenate(both) for both in zip(arrays, below, strict=True)]
    if not all(np.isfinite(array).all() for array in arrays):
        raise BrokenInvariantError(
            f"the {settings.estimator} estimator made an advantage that is not finite; look at the step rewards"
        )
    rows = [
        {"trajectory": reward["trajectory"], "step": step, "advantage": float(value)}
        for reward, array in zip(rewards, arrays, strict=True)
        for step, value in enumerate(array)
        if step >= own_steps_from(reward["trajectory"])
    ]
    return pa.Table.from_pylist(rows, schema=ADVANTAGES_SCHEMA)


def reward_table(rewards: list[dict]) -> pa.Table:
    """Return rows of REWARDS_SCHEMA: the unchanged rewards, one row per step."""
    rows = [
        {"trajectory": reward["trajectory"], "step": step, "reward": value}
        for reward in rewards
        for step, value in enumerate(reward["step_rewards"])
    ]
    rows += [{"trajectory": reward["trajectory"]} for reward in rewards if not reward["step_rewards"]]
    return pa.Table.from_pylist(rows, schema=REWARDS_SCHEMA)


def kept_rows(rewards: Iterable[pa.Table], selections: Iterable[pa.Table]) -> list[dict]:
    """Return the rewards of the trajectories of the kept groups: of all, or of those that the selections name."""
    kept = {row["group"]: row.get(TRAJECTORIES) for selection in selections for row in selection.to_pylist() if row["kept"]}
    rows = [row for scored in rewards for row in scored.to_pylist() if row["group"] in kept]
    return [row for row in rows if (named := kept[row["group"]]) is None or row["trajectory"] in named]


@durable
def advantage(services: Services, scope: Scope, rewards: list[Artifact], selections: list[Artifact]) -> Artifact:
    """Compute advantages of every step of every kept group, over all rounds together.

    If the estimator needs what only the learner has (values, log-probs of the reference), the table holds the step rewards,
    and the learner applies the estimator to them before its first optimiser step.
    """
    rows = kept_rows(map(services.read, rewards), map(services.read, selections))
    config = services.config
    table = reward_table(rows) if config.learner_estimates else advantage_table(rows, config.advantage, config.agent.credit)
    path = scope.layout.advantages
    digest = services.storage.write_table(path, table)
    counts = {"advantage/trajectories": float(len(rows)), "advantage/steps": float(pc.count(table["step"]).as_py())}
    metrics = of(counts, "sum")
    if "advantage" in table.column_names:
        metrics["advantage/max_abs"] = Metric(float(pc.max(pc.abs(table["advantage"])).as_py() or 0.0), "max")
    return Artifact(path=path, digest=digest, metrics=metrics)


def nothing_to_gain(metrics: Mapping[str, float], taught: bool = False) -> str:
    """Return why nothing can be learned from a table with these metrics; empty if something can, by advantages or a teacher."""
    if not metrics["advantage/steps"]:
        return "no trajectory took a step"
    if not taught and metrics.get("advantage/max_abs", 1.0) < ROUNDING:
        return "what was kept earned the same at every step, so that no advantage is left"
    return ""
