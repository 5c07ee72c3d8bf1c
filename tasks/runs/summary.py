"""The summary of a finished run."""

from pydantic import BaseModel, ConfigDict, ValidationError

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, NothingLearnedError
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import newest_record
from nbrl.tasks.runs.run import Run


class Summary(BaseModel):
    """`curve` is the exact match of each iteration's own rollouts; `seconds` sums the wall time by node over all iterations.

    `skipped_in_row` counts the iterations without an update at the end; `stalled` is their diagnosis in lines, and is
    empty if the run did not end because of them.
    """

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
    skipped_in_row: int = 0
    stalled: str = ""


def finished(run: Run, config: RunConfig, storage: Storage) -> Summary | None:
    """The summary of a run that already did all its iterations, or that ended early without signal, else None.

    Raises NothingLearnedError if nothing was learned in any, and ConfigError if it did more iterations than configured.
    """
    newest = newest_record(storage, run)
    if newest is not None and newest.iteration >= config.iterations:
        raise ConfigError(
            f"run {run.name!r} has done {newest.iteration + 1} iterations and iterations is {config.iterations}; set it to as "
            "many or more"
        )
    path = run.layout.summary
    if not storage.exists(path):
        return None
    try:
        summary = Summary.model_validate(storage.read_json(path))
    except (DamagedError, ValidationError) as error:
        raise DamagedError(f"{storage.uri(path)} is damaged; delete it, and the same command makes it again") from error
    if summary.iterations != config.iterations and not (summary.stalled and summary.skipped_in_row >= config.select.patience):
        return None
    return learned(summary)


def learned(summary: Summary) -> Summary:
    """Return the summary of a run that made an update or had no iterations. Raises NothingLearnedError otherwise."""
    if summary.stalled and summary.skipped_in_row == summary.iterations:
        raise NothingLearnedError(f"run {summary.run!r} learned nothing\n{summary.stalled}")
    return summary
