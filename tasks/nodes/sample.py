"""sample: chooses the prompts of an iteration."""

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.tasks.environments.mixture import prompts_from
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


@durable
def sample(services: Services, scope: Scope, cursor: int, round_: int, retired: Artifact | None = None) -> Artifact:
    """Take the prompts from position `cursor` on in the run's order of training questions, without those that are retired.

    Raises DamagedError if it cannot be read which are.
    """
    count = services.config.rollout.prompts
    questions = services.reads.questions(scope.run_layout.data, "train")
    try:
        passed = services.read(retired)["id"].to_pylist() if retired else []
    except (DamagedError, MissingError) as error:
        made_in = scope.iteration + (1 if round_ else 0)  # counted from 1
        raise DamagedError(f"{error}; `nbrl resume {scope.run} --redo {made_in}:retire` makes the table again") from error
    prompts, positions = prompts_from(questions, services.config.weights, scope.seed, cursor, count, passed)
    path = scope.layout.round(round_).prompts
    digest = services.storage.write_table(path, prompts)
    return Artifact(path=path, digest=digest, metrics=of({"sample/prompts": count, "sample/positions": positions}, "sum"))
