"""evaluate: samples and scores held-out questions as in training, without learning from them."""

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.tools.settings import SearchSettings
from nbrl.agent.trajectory import Status
from nbrl.tasks.evaluation.answers import answers_in
from nbrl.tasks.evaluation.scores import metrics as score_metrics
from nbrl.tasks.evaluation.scores import scores
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.nodes.reward import over_parts, score_trajectories
from nbrl.tasks.nodes.rollout import CORPUS, earlier_chunks, roll_out, task_rows
from nbrl.tasks.rollout.chunks import places_of
from nbrl.tasks.rollout.plan import RoundPlan
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


@durable
async def evaluate(services: Services, scope: Scope) -> Artifact:
    """Evaluate a policy on the first `evaluate.questions` held-out questions of each environment, always with the same seed.

    A trajectory that could not be scored counts as wrong; one that failed for the infrastructure is left out of the scores.
    Raises RolloutError if more failed than `rollout.failed_share` allows, BrokenInvariantError if one was sampled from other
    weights than those of the scope.
    """
    settings, config, layout = services.config.evaluate, services.config, scope.layout.round(0)
    version = await services.serve(scope)
    questions = await asyncio.to_thread(services.reads.questions, scope.run_layout.data, "held_out")
    rows = asked(questions, settings, scope.seed, config.rollout.tools.search)
    chunks, earlier = layout.chunks(scope.weights.digest), await earlier_chunks(services, scope, 0)
    plan = RoundPlan(chunks, earlier, settings.sampling, config.engine, direct=settings.mode == "direct")
    trajectories = await roll_out(services, "evaluate", rows, layout, version, plan)
    rewards = await score_trajectories(services, layout, trajectories, questions)
    answers = await asyncio.to_thread(_answers, services, trajectories, rewards, questions)
    sampled, scored = trajectories.values, rewards.values
    metrics = {
        "em": scored["reward/em"],
        "trajectories": float(len(rows)),
        "failed": sampled[f"rollout/status/{Status.FAILED}"],
        "unscored": scored["reward/unscored"],
        "sampled_tokens": sampled["rollout/sampled_tokens"],
        "steps": sampled["rollout/steps"],
    }
    metrics |= {key.removeprefix("reward/"): value for key, value in scored.items() if key.count("/") > 1}
    metrics |= score_metrics(scores(answers), settings.mode)
    parts = {trajectories.path: trajectories.digest, **trajectories.parts}
    return Artifact(path=rewards.path, digest=rewards.digest, parts=parts, metrics=of(metrics, "last"))


def _answers(services: Services, trajectories: Artifact, rewards: Artifact, questions: pa.Table) -> pa.Table:
    """The answers, in the order of the trajectories."""
    index = places_of(services.storage, trajectories.path, trajectories.digest)
    return over_parts(index, answers_in, (services.storage, services.read(rewards), questions), "trajectory")
