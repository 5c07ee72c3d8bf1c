"""How a command is interrupted, and how its process ends. It imports nothing, since it acts before all else."""

import atexit
import os
import signal
import sys
from types import TracebackType
from typing import Self

INTERRUPTED = 128 + signal.SIGINT


def _leave(*_: object) -> None:
    os._exit(130)


def hold() -> None:
    """Let Ctrl-C end this process at once. If SIGINT is ignored, as in a shell's background job, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def release() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class QuickEnd:
    """Within it, a SystemExit with a number ends the process as soon as all is done that was registered for its end after this.

    By itself Python would take apart all objects then: more than a second of a core once Ray, Prefect and MLflow were imported.
    So finalizers do not run, and files other than the standard streams must be closed by whoever opened them.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        atexit.register(self._leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            self._status = error.code & 0xFF  # what the system keeps of it

    def _leave(self) -> None:
        if self._status is None:
            return
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it was closed
                stream.flush()
        except (OSError, ValueError):
            return  # Python says what cannot be written, and ends with a status of its own
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)  # nobody reads what is to be written
        os._exit(self._status)
