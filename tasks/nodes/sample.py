"""sample: chooses the prompts of an iteration."""

from nbrl.tasks.environments.mixture import prompts_at
from nbrl.tasks.metrics import Metric
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


@durable
def sample(services: Services, scope: Scope, cursor: int, round_: int) -> Artifact:
    """Take the prompts at `cursor` in the run's order of training questions."""
    count = services.config.rollout.prompts
    questions = services.reads.questions(scope.run_layout.data, "train")
    prompts = prompts_at(questions, services.config.weights, scope.seed, cursor, count)
    path = scope.layout.round(round_).prompts
    digest = services.storage.write_table(path, prompts)
    return Artifact(path=path, digest=digest, metrics={"sample/prompts": Metric(count, "sum")})
