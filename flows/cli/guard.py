"""Reports errors and stops of a command."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from nbrl.agent.errors import AgentError
from nbrl.flows.display.terminal import say
from nbrl.infra.errors import InfraError
from nbrl.sandbox.errors import SandboxError
from nbrl.tasks.errors import NothingLearnedError, RunError, StoppedError

T = TypeVar("T")
INTERRUPTED = 130
NOTHING_LEARNED = 4  # exit code of a run that made no update; 3 is that of an agent without an answer
_remains: list[Callable[[], str]] = []  # of the command that runs


def on_stop(remains: Callable[[], str]) -> None:
    """Set the message about what remains and how to go on, for a stop of the command from now on."""
    _remains[:] = [remains]


class Guarded(TyperGroup):
    """Reports the project's own exceptions of its commands without a traceback (exit code 1, or 4 if nothing was learned),
    and Ctrl-C with the message of `on_stop` (exit code 130).
    """

    def invoke(self, ctx: Any) -> Any:
        _remains.clear()
        try:
            _check_folder()
            return super().invoke(ctx)
        except StoppedError as error:
            _stopped(str(error))
        except (RunError, InfraError, SandboxError, AgentError) as error:
            for line in str(error).splitlines() or [type(error).__name__]:
                say(line, "red")
            raise typer.Exit(NOTHING_LEARNED if isinstance(error, NothingLearnedError) else 1) from error
        except (KeyboardInterrupt, asyncio.CancelledError):
            _stopped()


def _stopped(why: str = "") -> None:
    say("; ".join(filter(None, ["stopped", why, *(remains() for remains in _remains)])))
    raise typer.Exit(INTERRUPTED)


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
