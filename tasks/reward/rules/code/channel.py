"""The beginning of both programs that judge code: their limits, and a channel to the host that the judged code does not hold."""

import math
import os
import resource
from typing import BinaryIO, NamedTuple

READY = b"ready\n"
LOADED = b"loaded\n"  # says the program of the answer once it has its functions
MEMORY = 2 << 30  # bytes of each process
PROCESSES = 4  # threads count


class ScorerChannel(NamedTuple):
    """Lines of JSON from the host and to it."""

    orders: BinaryIO
    replies: BinaryIO


def begin(cpu: float) -> ScorerChannel:
    """Bind this process to so many more seconds of processor time, and say that it is ready.

    What it prints from now on is lost, and there is nothing to read.
    """
    channel = ScorerChannel(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0))
    nothing = os.open(os.devnull, os.O_RDWR)
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(used.ru_utime + used.ru_stime + cpu)  # the limit is in whole seconds
    limits = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: until, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NPROC: PROCESSES}
    for what, limit in limits.items():
        resource.setrlimit(what, (limit, limit))
    channel.replies.write(READY)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    return channel
