"""Records of finished iterations, each written last, so that its presence means that the iteration happened."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout import updates_of
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope


class Record(BaseModel):
    """The record of an iteration of the run drawn as `run_id`.

    `cursor` is the first prompt of the next iteration. `checkpoint` holds the newest weights after this one and is empty before
    the first update. `skipped` says why nothing was learned (there was no update, or one without an optimiser step), and is
    empty otherwise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    iteration: int
    cursor: int
    checkpoint: str
    artifacts: list[Artifact]
    metrics: dict[str, float]
    skipped: str = ""
    run_id: str = ""

    @property
    def updates(self) -> int:
        """Updates that the run has made after this iteration."""
        return updates_of(self.checkpoint) if self.checkpoint else 0


def read_record(storage: Storage, scope: Scope) -> Record | None:
    """The record of an iteration, where it happened.

    Raises DamagedError, and BrokenInvariantError if it is of another run of that name.
    """
    key = scope.layout.record
    if not storage.exists(key):
        return None
    try:
        record = Record.model_validate(storage.read_json(key))
    except (DamagedError, ValidationError) as error:
        raise DamagedError(
            f"{storage.uri(key)} is damaged: it is not what was written there; bring it back from a copy, or delete it: what the "
            "iteration made is found again and recorded anew"
        ) from error
    if record.run_id not in ("", scope.run_id):
        raise BrokenInvariantError(
            f"{storage.uri(key)} is of another run that was named {scope.run!r} too; end what still trains it, and train under "
            "another name"
        )
    return record


def newest_record(storage: Storage, run: Run) -> Record | None:
    """The record of the last finished iteration, counted from the first without a gap."""
    count = 0
    while storage.exists(run.layout.iteration(count).record):
        count += 1
    return read_record(storage, run.scope(count - 1)) if count else None


def made_updates(storage: Storage, run: Run) -> int:
    """Number of updates that the run has made, from its newest record."""
    newest = newest_record(storage, run)
    return newest.updates if newest else 0


def skipped_in_row(records: Sequence[Record]) -> int:
    """Number of iterations at the end from which nothing was learned."""
    count = 0
    while count < len(records) and records[-1 - count].skipped:
        count += 1
    return count
