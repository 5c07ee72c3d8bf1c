"""sample: chooses the prompts of an iteration."""

from nbrl.tasks.environments.mixture import prompts_from
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


@durable
def sample(services: Services, scope: Scope, cursor: int, round_: int, retired: Artifact | None = None) -> Artifact:
    """Take the prompts from position `cursor` on in the run's order of training questions, without those that are retired."""
    count = services.config.rollout.prompts
    questions = services.reads.questions(scope.run_layout.data, "train")
    passed = services.read(retired)["id"].to_pylist() if retired else []
    prompts, positions = prompts_from(questions, services.config.weights, scope.seed, cursor, count, passed)
    path = scope.layout.round(round_).prompts
    digest = services.storage.write_table(path, prompts)
    return Artifact(path=path, digest=digest, metrics=of({"sample/prompts": count, "sample/positions": positions}, "sum"))
