"""How a command fails, and how it is stopped."""

import asyncio
import atexit
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import typer

from nbrl.agent.errors import AgentError
from nbrl.flows.display.progress import say
from nbrl.infra.errors import InfraError
from nbrl.sandbox.errors import SandboxError
from nbrl.tasks.errors import NothingLearnedError, RunError, StoppedError

T = TypeVar("T")
NOTHING_LEARNED = 4  # exit code of a run that made no update; 3 is that of an agent without an answer


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


class Importing:
    """A context only for importing modules, in which Ctrl-C ends the process at once."""

    def __enter__(self) -> None:
        hold()

    def __exit__(self, *_: object) -> None:
        release()


def guard(work: Callable[[], T], stopped: Callable[[], str] = lambda: "") -> T:
    """Report the project's own exceptions without a traceback (exit code 1, or 4 if nothing was learned), and Ctrl-C with the
    message of `stopped` about what remains (exit code 130).
    """
    try:
        release()
        _check_folder()
        return work()
    except StoppedError as error:
        say("; ".join(filter(None, ["stopped", str(error), stopped()])))
        raise typer.Exit(130) from None
    except (RunError, InfraError, SandboxError, AgentError) as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            say(line, "red")
        raise typer.Exit(NOTHING_LEARNED if isinstance(error, NothingLearnedError) else 1) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("; ".join(filter(None, ["stopped", stopped()])))
        raise typer.Exit(130) from None


def _check_folder() -> None:
    """Raises RunError if the current folder was deleted, because no relative path can then be resolved."""
    try:
        os.getcwd()
    except OSError as error:
        raise RunError("the current folder does not exist any more; change to one that does and try again") from error


async def cancel_on_term(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await `work`, which SIGTERM cancels like Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work()


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
