"""evaluate: samples and scores held-out questions as in training, without learning from them."""

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.tools.settings import SearchSettings
from nbrl.agent.trajectory import Status
from nbrl.tasks.layout import DataLayout, RoundLayout
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.nodes.reward import score_trajectories
from nbrl.tasks.nodes.rollout import CORPUS, earlier_chunks, roll_out, task_rows
from nbrl.tasks.runs.config import EvaluateSettings
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.services import Services


def asked(held_out: pa.Table, settings: EvaluateSettings, seed: int, search: SearchSettings = CORPUS) -> list[dict[str, Any]]:
    """One row per trajectory of an evaluation, as `task_rows` makes them; `seed` is that of the run."""
    questions = first_of_each(held_out, settings.questions)
    return task_rows(questions.append_column("group", questions["id"]), settings.samples, derive_seed(seed, "evaluate"), search)


def first_of_each(questions: pa.Table, count: int | None) -> pa.Table:
    """The first `count` questions of each environment, all if it is None."""
    names = list(dict.fromkeys(questions["environment"].to_pylist()))
    parts = [questions.filter(pc.equal(questions["environment"], name)).slice(0, count) for name in names]
    return pa.concat_tables(parts)


async def evaluate_into(
    services: Services,
    layout: RoundLayout,
    data: DataLayout,
    seed: int,
    version: str,
    policy: str = "",
    earlier: tuple[str, ...] = (),
) -> Artifact:
    """Write trajectories of each environment's first `evaluate.questions` held-out questions and their rewards below `layout`.

    A trajectory that failed or could not be scored counts as wrong, so that an evaluation always covers all questions. Raises
    BrokenInvariantError if one was sampled from other weights than `version`.
    """
    settings = services.config.evaluate
    table = await asyncio.to_thread(services.reads.questions, data, "held_out")
    rows = asked(table, settings, seed, services.config.rollout.tools.search)
    trajectories = await roll_out(services, "evaluate", rows, layout, settings.sampling, version, policy, earlier)
    rewards = await score_trajectories(services, layout, trajectories, table)
    sampled, scored = trajectories.values, rewards.values
    metrics = {
        "success": scored["reward/success"],
        "em": scored["reward/em"],
        "f1": scored["reward/f1"],
        "questions": float(len(rows) // settings.samples),
        "trajectories": float(len(rows)),
        "failed": sampled[f"rollout/status/{Status.FAILED}"],
        "unscored": scored["reward/unscored"],
        "sampled_tokens": sampled["rollout/sampled_tokens"],
        "steps": sampled["rollout/steps"],
    }
    metrics |= {key.removeprefix("reward/"): value for key, value in scored.items() if key.count("/") > 1}
    parts = {trajectories.path: trajectories.digest}
    return Artifact(path=rewards.path, digest=rewards.digest, parts=parts, metrics=of(metrics, "last"))


@durable
async def evaluate(services: Services, scope: Scope) -> Artifact:
    """Evaluate the policy after `scope.updates` updates on the held-out questions, always with the same seed."""
    version = await services.serve(scope)
    data = scope.run_layout.data
    earlier = await earlier_chunks(services, scope, 0)
    return await evaluate_into(services, scope.layout.round(0), data, scope.seed, version, scope.weights.digest, earlier)
