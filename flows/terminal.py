"""What every command shares: where it prints, how it fails, how it is stopped."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from nbrl.agent.errors import AgentError
from nbrl.flows import interrupt
from nbrl.infra.errors import InfraError
from nbrl.sandbox.errors import SandboxError
from nbrl.tasks.errors import NothingLearnedError, RunError, UpdateError

out, err = Console(), Console(stderr=True)
T = TypeVar("T")
NOTHING_LEARNED = 4  # exit code of a run that made no update; 3 is that of an agent without an answer


def plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup, and nothing that a terminal would obey."""
    return Text("".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text), style)


def say(text: str, style: str = "") -> None:
    """A line for people, on stderr; some of it may come from a server."""
    err.print(plain(f"nbrl: {text}", style), soft_wrap=True)


def guard(work: Callable[[], T], stopped: Callable[[], str] = lambda: "") -> T:
    """One clear error instead of a traceback for everything that has a name.

    Ctrl-C ends with exit code 130 and what `stopped` says then of what is left.
    """
    try:
        interrupt.release()
        _check_folder()
        return work()
    except (RunError, InfraError, SandboxError, AgentError, UpdateError) as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            say(line, "red")
        raise typer.Exit(NOTHING_LEARNED if isinstance(error, NothingLearnedError) else 1) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("; ".join(filter(None, ["stopped", stopped()])))
        raise typer.Exit(130) from None


def _check_folder() -> None:
    """Raises RunError when the current folder is gone: no path could be told."""
    try:
        os.getcwd()
    except OSError as error:
        raise RunError("the current folder does not exist any more; change to one that does and try again") from error


async def cancel_on_term(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await `work`; SIGTERM cancels it as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work()
