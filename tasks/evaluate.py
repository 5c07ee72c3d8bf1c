"""evaluate: held-out questions, sampled and scored as in training, learning from none of them."""

from agent.trajectory import Status
from tasks.node import node
from tasks.parts import Parts
from tasks.publish import serve
from tasks.reward.node import score_trajectories
from tasks.rollout.node import roll_out, task_rows
from tasks.scope import Artifact, Scope, derive_seed


async def evaluate_into(parts: Parts, folder: str, questions_path: str, seed: int, version: str) -> Artifact:
    """Trajectories of the first `evaluate.questions` questions, from weights `version`, and rewards, below `folder`.

    A trajectory that failed counts as wrong: an evaluation never shrinks to what went well.
    """
    settings = parts.config.evaluate
    questions = parts.storage.read_table(questions_path).slice(0, settings.questions)
    questions = questions.append_column("group", questions["id"])
    rows = task_rows(questions, settings.samples, seed)
    trajectories = await roll_out(parts, rows, folder, settings.sampling, version)
    rewards = await score_trajectories(parts, trajectories.path, questions_path, f"{folder}/rewards.parquet")
    metrics = {
        "em": rewards.metrics["reward/em"],
        "f1": rewards.metrics["reward/f1"],
        "questions": float(len(questions)),
        "trajectories": float(len(rows)),
        "failed": trajectories.metrics[f"rollout/status/{Status.FAILED}"],
        "sampled_tokens": trajectories.metrics["rollout/sampled_tokens"],
        "steps": trajectories.metrics["rollout/steps"],
    }
    metrics |= {key.removeprefix("reward/"): value for key, value in rewards.metrics.items() if key.startswith("reward/em/")}
    return Artifact(path=folder, digest=rewards.digest, metrics=metrics)


def evaluation_folder(scope: Scope) -> str:
    return f"runs/{scope.run}/evaluations/{scope.updates:06d}"


@node
async def evaluate(parts: Parts, scope: Scope) -> Artifact:
    """The policy after `scope.updates` updates on the held-out questions. The same seed every time: the same draw of luck."""
    version = await serve(parts, scope)
    folder = evaluation_folder(scope)
    return await evaluate_into(
        parts, folder, f"runs/{scope.run}/data/held_out.parquet", derive_seed(scope.seed, "evaluate"), version
    )
