"""The figures a finished run leaves."""

from pydantic import BaseModel, ConfigDict

from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, NothingLearnedError
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import newest_record
from nbrl.tasks.runs.run import Run


class Summary(BaseModel):
    """`curve` is the exact match of each iteration's own rollouts; `seconds` sums the wall time by node over all iterations.

    `skipped_in_row` counts the iterations without an update at the end; `stalled` says in lines what is known of them, and is
    empty where the run did not end because of them.
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
    """The summary of a run that already did all its iterations, or that ended because they taught nothing.

    Raises NothingLearnedError where none of them did, and ConfigError where it did more than are asked for.
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
    summary = Summary.model_validate(storage.read_json(path))
    if summary.iterations != config.iterations and not (summary.stalled and summary.skipped_in_row >= config.select.patience):
        return None
    return learned(summary)


def learned(summary: Summary) -> Summary:
    """The summary of a run that made an update, or had no iteration to make one in. Raises NothingLearnedError for another."""
    if summary.stalled and summary.skipped_in_row == summary.iterations:
        raise NothingLearnedError(f"run {summary.run!r} learned nothing\n{summary.stalled}")
    return summary
