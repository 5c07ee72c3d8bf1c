"""The summary of a finished evaluation, from which its report, its artifacts and its MLflow run are made.

It imports little: a list of runs reads it too.
"""

from dataclasses import dataclass

from pydantic import Field, ValidationError

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.rollout.plan import Server


class Subject(ClosedModel):
    """A run's policy after `updates` updates, or else a folder, or a model behind a server.

    `name` is what reports call it, `digest` that of its weights, or of the server's address and the model's name there.
    """

    name: str
    digest: str
    run: str = ""
    run_id: str = ""
    updates: int = Field(0, ge=0)
    server: Server | None = None


@dataclass(frozen=True)
class Estimate:
    """A mean over questions, and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float
    questions: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Scores:
    """Scores over some of the questions.

    `pass_at` is by k, over the questions with at least k samples; `majority` is None where every question has one sample.
    """

    environment: str
    ability: str
    questions: int
    success: Estimate
    f1: Estimate
    pass_at: dict[int, Estimate]
    majority: Estimate | None = None

    @property
    def label(self) -> str:
        return "/".join(part for part in (self.environment, self.ability) if part) or "all"

    def headline(self, mode: str) -> Estimate:
        """Return the score that counts in this mode of asking: that of the vote, or the mean success."""
        return self.majority if mode == "vote" and self.majority is not None else self.success


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
