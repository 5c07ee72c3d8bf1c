"""The processor time of this process and of everything below it: engines, kernels and the workers of a local Ray cluster.

What runs on other machines of a joined cluster is not below it and does not count.
"""

from contextlib import suppress

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
