"""The position of a node in a run, its result, and the seeds derived from the position."""

from pydantic import BaseModel, ConfigDict, Field

from nbrl.tasks.layout import IterationLayout, RunLayout
from nbrl.tasks.metrics import Metric, Metrics
from nbrl.tasks.seeds import derive_seed


class Artifact(BaseModel):
    """A reference to immutable data under the storage root, with metrics about it."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    path: str
    digest: str
    metrics: Metrics = Field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """The metrics' values alone."""
        return {name: metric.value for name, metric in self.metrics.items()}

    def timed(self, node: str, seconds: float) -> "Artifact":
        """The same artifact with the seconds that its node took."""
        return self.model_copy(update={"metrics": {**self.metrics, f"time/{node}": Metric(seconds, "sum")}})


class Scope(BaseModel):
    """One iteration of one run, and the updates that came before it: fewer than iterations if some had none.
    `run_id` is random and fixed when the run is created, so that a new run of an old name shares no result with it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    run_id: str
    config_digest: str
    seed: int
    iteration: int
    updates: int

    @property
    def run_layout(self) -> RunLayout:
        return RunLayout(self.run)

    @property
    def layout(self) -> IterationLayout:
        return self.run_layout.iteration(self.iteration)

    def checkpoint(self, updates: int) -> str:
        """Folder of the checkpoint that `updates` updates made."""
        return self.run_layout.checkpoint(updates)

    def draw(self, name: str) -> int:
        return derive_seed(self.seed, self.iteration, name)
