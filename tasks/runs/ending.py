"""The end of a start of a run, in words that outlive its process."""

from typing import Literal, NamedTuple

from nbrl.tasks.errors import StoppedError, TakenOverError

Status = Literal["FINISHED", "FAILED", "KILLED"]
STOPPED = "stopped by Ctrl-C or a signal"
SILENT = "its process ended without saying why"


class Ending(NamedTuple):
    """`reason` is a sentence; it is empty for what finished."""

    status: Status
    reason: str = ""


def ending_of(error: BaseException | None) -> Ending:
    """Return the status of a run (stopped, taken over, failed) for an exception."""
    if error is None:
        return Ending("FINISHED")
    if isinstance(error, TakenOverError | StoppedError):
        return Ending("KILLED", str(error))
    if not isinstance(error, Exception):  # a cancellation, KeyboardInterrupt, Prefect's signals
        return Ending("KILLED", STOPPED)
    lines = str(error).strip().splitlines()
    return Ending("FAILED", lines[0] if lines else type(error).__name__)
