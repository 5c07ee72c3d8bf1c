"""Handles the processes that a cell forks.

ZeroMQ sockets do not survive a fork, and a child has no IOPub thread: it writes to the captured descriptors, and sends no
message. A child that runs off the end of its cell (os.fork, not multiprocessing) ends there; else it would take the requests
of the notebook.
"""

import asyncio
import contextlib
import os
import sys
import traceback
import warnings
from typing import Any

from nbrl.sandbox.inside.streams import NUMBERS, CapturedStream

_ended: list[int] = []  # the exit codes of a child's errors
_begun_in: list[asyncio.Task[Any]] = []  # the task that forked the child


def restore_in_children(session: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Prepare the children that the kernel will fork. `session` is the kernel's, `loop` that of its main thread.

    Call it after all else that changes what the session does.
    """

    def after_fork() -> None:
        CapturedStream.forked = True
        for name, number in NUMBERS.items():
            file = open(number, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, file)
            setattr(sys, f"__{name}__", file)
        session.send = _print
        if task := asyncio.current_task(loop):
            _begun_in.append(task)
        loop.stop()  # at the end of this turn, in which nothing else runs
        for handle in loop._ready:  # type: ignore[attr-defined]
            handle.cancel()

    os.register_at_fork(after_in_child=after_fork)


def _print(stream: Any, kind: Any, content: Any = None, *_: object, **__: object) -> dict[str, Any]:
    """Print the text of what a child would send and a notebook show. Of results and displays the message is given as a whole."""
    if isinstance(kind, dict):
        kind, content = kind.get("msg_type"), kind.get("content")
    match kind, content:
        case "execute_result" | "display_data" | "update_display_data", {"data": {"text/plain": str(text)}}:
            print(text)
        case "error", {"ename": "SystemExit", "evalue": str(code)} if code.isdecimal():
            _ended.append(int(code) & 255)
        case "error", {"ename": name, "evalue": said, "traceback": list(lines)}:
            _ended.append(1)
            print(said if name == "SystemExit" else "\n".join(map(str, lines)), file=sys.stderr)
    return {"content": content}


def end_child() -> None:
    """End this process if a cell forked it, as Python ends a program; call it when the loop has stopped."""
    if CapturedStream.forked:
        for task in _begun_in:
            if task.done() and not task.cancelled() and (error := task.exception()):
                _ended.append(1)
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                    traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(_ended[-1] if _ended else 0)


def allow_forks() -> None:
    """Let cells fork without the warning that Python 3.12 gives where there are threads: a child does without nbrl's own.

    Call it when the shell is made, which sets filters of its own.
    """
    warnings.filterwarnings("ignore", ".* is multi-threaded, use of fork", DeprecationWarning)
