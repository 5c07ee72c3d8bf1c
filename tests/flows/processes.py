"""Finds the processes a test started, however deep, by a mark in their environment."""

import os
import signal
from pathlib import Path

KEY = "NBRL_TEST_MARK"


def mark(name: str) -> dict[str, str]:
    """This environment with a mark that every descendant inherits."""
    return os.environ | {KEY: f"{os.getpid()}-{name}"}


def left_over(name: str) -> list[str]:
    """Command lines of living processes with this mark."""
    wanted = f"{KEY}={os.getpid()}-{name}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:
            continue
    return found


def heed_interrupts() -> None:
    """In a new process: a shell's background job starts with Ctrl-C ignored, a person's command does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
