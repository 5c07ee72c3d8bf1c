"""A limit on what this process takes of memory, for work with files that may be hostile."""

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

CONTAINER = Path("/sys/fs/cgroup")

_ends: list[int] = []  # of the limits that hold now, in bytes of data
_usual = resource.getrlimit(resource.RLIMIT_DATA)
_changing = threading.Lock()


@contextmanager
def memory_limited(most: int) -> Iterator[None]:
    """Let this process take at most `most` further bytes until the end of the body: what needs more fails with a MemoryError.

    Threads share the limit; processes that begin in it have the same, each for itself. Of several limits the lowest holds.
    """
    end = psutil.Process().memory_info().data + most
    with _changing:
        _ends.append(end)
        _set()
    try:
        yield
    finally:
        with _changing:
            _ends.remove(end)
            _set()


def free_memory() -> int:
    """Return how many bytes of memory programs can still take here: on the machine, and in a container of its own."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, KeyError):  # without control groups, or without a limit, which is the word max
        most, used = (int((CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
        free = min(
            free, most - used + int(counts["inactive_file"]) + int(counts["active_file"])
        )  # what holds files can be given back
    return free


def _set() -> None:
    soft, hard = _usual
    limits = [each for each in (*_ends, soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits, default=soft), hard))
