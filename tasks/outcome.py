"""The figures a finished run leaves."""

from pydantic import BaseModel, ConfigDict

from infra.storage import Storage
from tasks.config import RunConfig
from tasks.run import Run


class Summary(BaseModel):
    """`curve` is the exact match of each iteration's own rollouts; `seconds` sums the wall time by node over all iterations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    before: dict[str, float]
    after: dict[str, float]
    iterations: int
    trajectories: int
    sampled_tokens: int
    mismatch_max: float
    overhead_share: float
    seconds: dict[str, float]
    curve: list[float]
    curve_path: str
    example: str


def finished(run: Run, config: RunConfig, storage: Storage) -> Summary | None:
    """The summary of a run that already did all its iterations."""
    path = f"{run.folder}/summary.json"
    if not storage.exists(path):
        return None
    summary = Summary.model_validate_json(storage.read_bytes(path))
    return summary if summary.iterations == config.iterations else None
