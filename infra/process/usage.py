"""The processor time of processes and of everything below them: engines, kernels and the workers of a local Ray cluster.

What runs on other machines of a joined cluster is not below it and does not count.
"""

from contextlib import suppress
from pathlib import Path

import psutil


def processor_seconds() -> float:
    """User and system time of the process tree, with that of processes that ended and whose parent took note of it."""
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def busy_seconds(pid: int) -> float:
    """Seconds for which the threads of a process, and of those below it, ran or waited for a processor; not what sleeps."""
    total = 0
    with suppress(psutil.Error):
        for process in [(top := psutil.Process(pid)), *top.children(recursive=True)]:
            for counts in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
                with suppress(OSError, ValueError):  # it ended meanwhile
                    ran, waited, _ = map(int, counts.read_text().split())
                    total += ran + waited
    return total / 1e9
