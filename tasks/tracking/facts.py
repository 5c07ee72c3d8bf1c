"""What the tags of a run in MLflow say of it, from its storage."""

from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.epochs import first_and_newest
from nbrl.tasks.runs.run import Run

RUN_ID, DIGEST = "nbrl.run_id", "nbrl.digest"


def identity(run: Run) -> dict[str, str]:
    """The tags by which a run is found again."""
    return {RUN_ID: run.run_id, DIGEST: run.config_digest}


def facts(storage: Storage, layout: RunLayout, recipe: str, model: str) -> tuple[dict[str, str], float | None]:
    """Tags about a run or evaluation and its newest start, without those that nobody knows, and when its first start was.

    The time is in seconds since 1970, and None where nobody can tell it.
    """
    known = {"nbrl.recipe": recipe, "nbrl.model": model, "mlflow.source.type": "LOCAL"}
    known["mlflow.source.name"] = "nbrl"
    if (starts := first_and_newest(storage, layout)) is None:
        return known, None
    first, newest = starts
    known |= {
        "mlflow.user": newest.user,
        "mlflow.source.name": newest.command.partition(" ")[0] or "nbrl",
        "mlflow.source.git.commit": newest.commit,
        "nbrl.version": newest.version,
        "nbrl.host": newest.host,
        "nbrl.command": newest.command,
    }
    return {name: value for name, value in known.items() if value}, first.started
