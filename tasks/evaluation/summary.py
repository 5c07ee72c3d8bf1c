"""The summary of a finished evaluation, from which its report, its artifacts and its MLflow run are made."""

from pydantic import ValidationError

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.evaluation.scores import Scores
from nbrl.tasks.evaluation.subject import Subject
from nbrl.tasks.layout.runs import EvaluationLayout


class EvaluationSummary(ClosedModel):
    """`scores` are the scores with their intervals; `metrics` holds the same numbers by name.

    `failed` trajectories are left out of the scores, `unscored` ones count as wrong. `seconds` is the wall time of sampling and
    scoring, `processor_seconds` and `gpu_seconds` what they used of this machine:
    all three by the process that finished the evaluation.
    """

    name: str
    recipe: str
    subject: Subject
    mode: str
    samples: int
    environments: list[str]
    metrics: dict[str, float]
    scores: list[Scores]
    trajectories: int
    sampled_tokens: int
    failed: int
    unscored: int
    seconds: float
    processor_seconds: float
    gpu_seconds: float
    finished: float


def read(storage: Storage, name: str) -> EvaluationSummary | None:
    """Return the summary of the evaluation of this name, or None if it has not finished. Raises DamagedError."""
    key = EvaluationLayout(name).summary
    if not storage.exists(key):
        return None
    try:
        summary = EvaluationSummary.model_validate(storage.read_json(key))
        if summary.name == name:
            return summary
        fault = None
    except ValidationError as error:
        fault = error
    raise DamagedError(f"{storage.uri(key)} is no summary of {name}; delete it, and the same command makes it again") from fault
