"""evaluate: samples and scores held-out questions as in training, without learning from them."""

import asyncio

from nbrl.agent.trajectory import Status
from nbrl.tasks.layout import RoundLayout
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.nodes.reward import score_trajectories
from nbrl.tasks.nodes.rollout import roll_out, task_rows
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.services import Services


async def evaluate_into(services: Services, layout: RoundLayout, questions_key: str, seed: int, version: str) -> Artifact:
    """Write trajectories of the first `evaluate.questions` questions, from weights `version`, and rewards below `layout`.

    A failed trajectory counts as wrong, so that an evaluation always covers all questions.
    """
    settings = services.config.evaluate
    table = await asyncio.to_thread(services.storage.read_table, questions_key)
    questions = table.slice(0, settings.questions)
    questions = questions.append_column("group", questions["id"])
    rows = task_rows(questions, settings.samples, seed)
    trajectories = await roll_out(services, "evaluate", rows, layout, settings.sampling, version)
    rewards = await score_trajectories(services, layout, trajectories, table)
    sampled, scored = trajectories.values, rewards.values
    metrics = {
        "em": scored["reward/em"],
        "f1": scored["reward/f1"],
        "questions": float(len(questions)),
        "trajectories": float(len(rows)),
        "failed": sampled[f"rollout/status/{Status.FAILED}"],
        "sampled_tokens": sampled["rollout/sampled_tokens"],
        "steps": sampled["rollout/steps"],
    }
    metrics |= {key.removeprefix("reward/"): value for key, value in scored.items() if key.startswith("reward/em/")}
    return Artifact(path=layout.folder, digest=rewards.digest, metrics=of(metrics, "last"))


@durable
async def evaluate(services: Services, scope: Scope) -> Artifact:
    """Evaluate the policy after `scope.updates` updates on the held-out questions, always with the same seed."""
    version = await services.serve(scope)
    layout, questions = scope.run_layout.evaluation(scope.updates), scope.run_layout.data.split("held_out")
    return await evaluate_into(services, layout, questions, derive_seed(scope.seed, "evaluate"), version)
