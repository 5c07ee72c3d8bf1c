"""evaluate: held-out questions, sampled and scored as in training, learning from none of them."""

from nbrl.agent.trajectory import Status
from nbrl.tasks.nodes.durable import node
from nbrl.tasks.nodes.reward import score_trajectories
from nbrl.tasks.nodes.rollout import roll_out, task_rows
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.services import Services


async def evaluate_into(services: Services, folder: str, questions_path: str, seed: int, version: str) -> Artifact:
    """Trajectories of the first `evaluate.questions` questions, from weights `version`, and rewards, below `folder`.

    A trajectory that failed counts as wrong: an evaluation never shrinks to what went well.
    """
    settings = services.config.evaluate
    questions = services.storage.read_table(questions_path).slice(0, settings.questions)
    questions = questions.append_column("group", questions["id"])
    rows = task_rows(questions, settings.samples, seed)
    trajectories = await roll_out(services, rows, folder, settings.sampling, version)
    rewards = await score_trajectories(services, trajectories.path, questions_path, f"{folder}/rewards.parquet")
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
async def evaluate(services: Services, scope: Scope) -> Artifact:
    """The policy after `scope.updates` updates on the held-out questions. The same seed every time: the same draw of luck."""
    version = await services.serve(scope)
    folder = evaluation_folder(scope)
    return await evaluate_into(
        services, folder, f"runs/{scope.run}/data/held_out.parquet", derive_seed(scope.seed, "evaluate"), version
    )
