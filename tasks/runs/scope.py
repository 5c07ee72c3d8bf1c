"""The position of a node in a run, its result, and the seeds derived from the position."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nbrl.infra.closed import ClosedModel
from nbrl.tasks.layout.runs import RUNS, RunLayout, layout_of
from nbrl.tasks.layout.stages import StageLayout
from nbrl.tasks.metrics import Metrics, of
from nbrl.tasks.runs.kept import Key
from nbrl.tasks.seeds import derive_seed


class Artifact(BaseModel):
    """A reference to immutable data under the storage root, with metrics about it.

    `digest` is the SHA-256 of the object at `path`, or for a folder the digest of its weights. `parts` holds the SHA-256, by
    key, of the other objects that the node wrote.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    path: Key
    digest: str
    metrics: Metrics = Field(default_factory=dict)
    parts: dict[Key, str] = Field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """Return the metrics' values alone."""
        return {name: metric.value for name, metric in self.metrics.items()}

    def timed(self, node: str, seconds: float, spent: Mapping[str, float] | None = None) -> "Artifact":
        """Return the same artifact with the seconds that its node took, and its other costs."""
        sums = of({f"time/{node}": seconds, **(spent or {})}, "sum")
        return self.model_copy(update={"metrics": {**self.metrics, **sums}})


class Weights(ClosedModel):
    """The policy that `updates` updates made: the folder `checkpoint`, which is empty for the initial model, and its digest."""

    updates: int = 0
    checkpoint: Key = ""
    digest: str = ""


class Scope(ClosedModel):
    """One iteration of a run, or one evaluation, by the process that holds `epoch`; `weights` are those that sample, or that an
    update starts from.

    `kind` says whether `run` names a run or an evaluation of its own.

    `run_id` is random and fixed when the run is created, so that a new run of an old name shares no result with it.
    """

    run: str
    run_id: str
    seed: int
    epoch: str
    kind: Literal["runs", "evaluations"] = RUNS
    stage: Literal["iteration", "evaluation"] = "iteration"
    iteration: int
    weights: Weights = Weights()

    @property
    def updates(self) -> int:
        """Return the number of updates before this iteration: fewer than iterations if some had none."""
        return self.weights.updates

    @property
    def run_layout(self) -> RunLayout:
        return layout_of(self.kind, self.run)

    @property
    def layout(self) -> StageLayout:
        if self.stage == "evaluation":
            return self.run_layout.evaluation(self.updates, self.epoch)
        return self.run_layout.iteration(self.iteration, self.epoch)

    @property
    def title(self) -> str:
        return f"iteration {self.iteration + 1}" if self.stage == "iteration" else f"evaluation after {self.updates} updates"

    @property
    def moment(self) -> str:
        """Return the moment in the run, as an adverbial."""
        return f"in {self.title}" if self.stage == "iteration" else f"after {self.updates} updates"

    @property
    def next_checkpoint(self) -> str:
        """Return the folder of the checkpoint that this iteration's update makes."""
        return self.run_layout.checkpoint(self.updates + 1, self.epoch)

    def draw(self, name: str) -> int:
        return derive_seed(self.seed, self.iteration, name)
