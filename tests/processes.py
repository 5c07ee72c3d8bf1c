"""Finds the processes a test started, however deep, by a mark in their environment."""

import contextlib
import os
import signal
import time
from collections.abc import Container
from pathlib import Path

KEY = "NBRL_TEST_MARK"


def mark(name: str) -> dict[str, str]:
    """This environment with a mark that every descendant inherits."""
    return os.environ | {KEY: f"{os.getpid()}-{name}"}


def marked(name: str) -> list[int]:
    """Living processes with this mark."""
    wanted = f"{KEY}={os.getpid()}-{name}".encode()
    return [
        pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if wanted in told(pid).split(b"\0") and _lives(pid)
    ]


def told(pid: int) -> bytes:
    """The command line and the environment of a process; nothing if it is gone or is not ours to look at."""
    folder = Path("/proc", str(pid))
    with contextlib.suppress(OSError):
        return (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
    return b""


def descendants(above: int, besides: Container[int] = ()) -> list[int]:
    """All processes below this one; those that are `besides` are left out, with all that is below them."""
    parents: dict[int, list[int]] = {}
    for pid in _all():
        with contextlib.suppress(OSError):
            parents.setdefault(int(stat(pid)[1]), []).append(pid)
    found: list[int] = []
    left = [above]
    while left:
        below = [pid for pid in parents.get(left.pop(), []) if pid not in besides]
        found += below
        left += below
    return found


def stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; an OSError when the process is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return stat(pid)[0] not in "ZX"
    return False


def left_over(name: str) -> list[str]:
    """Command lines of living processes with this mark."""
    return [told(pid).replace(b"\0", b" ").decode(errors="replace")[:200] for pid in marked(name)]


def check_gone(name: str, seconds: float = 60.0) -> None:
    """Wait until no process with this mark lives. Fails if one still does after so many seconds."""
    end = time.monotonic() + seconds
    while left_over(name) and time.monotonic() < end:
        time.sleep(0.2)
    assert left_over(name) == []


def heed_interrupts() -> None:
    """In a new process: a shell's background job starts with Ctrl-C ignored, a person's command does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
