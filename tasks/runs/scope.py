"""Where a node stands in the run, what it returns, and the seeds derived from that."""

from pydantic import BaseModel, ConfigDict, Field

from nbrl.tasks.seeds import derive_seed


class Artifact(BaseModel):
    """A reference to immutable data under the storage root, with the small figures worth showing about it."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    path: str
    digest: str
    metrics: dict[str, float] = Field(default_factory=dict)


class Scope(BaseModel):
    """One iteration of one run, and the updates that came before it: fewer than iterations where some of those taught nothing.
    `run_id` is drawn when the run is created: a new run of an old name shares no result with it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    run_id: str
    config_digest: str
    seed: int
    iteration: int
    updates: int

    @property
    def folder(self) -> str:
        return f"runs/{self.run}/iterations/{self.iteration:06d}"

    def checkpoint(self, updates: int) -> str:
        """Folder of the checkpoint that `updates` updates made."""
        return f"runs/{self.run}/checkpoints/{updates:06d}"

    def draw(self, name: str) -> int:
        return derive_seed(self.seed, self.iteration, name)
