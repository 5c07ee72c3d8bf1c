"""Waits until a started server serves, and starts it again where it gave up before its time was over."""

import os
import time
from collections.abc import Callable

from nbrl.infra.errors import ServerError
from nbrl.infra.process.child import Child

GAVE_UP_S = 20.0  # what ends sooner by itself would do so again; what ends later had no time, as on a machine that is busy
BUSY = 2.0  # load of a core from which it is named


def started(
    child: Child,
    start: Callable[[], Child],
    healthy: Callable[[Child], bool],
    limit_s: float,
    title: str,
    setting: str = "",
    poll_s: float = 0.05,
    words: Callable[[Child], str] = lambda child: " ".join(child.log_tail(1)),
) -> Child:
    """Return a child that is healthy: this one or, where it gave up for want of time, one that `start` made after it.

    Raises ServerError, with nothing left running, once `limit_s` seconds have passed or a start ended soon by itself. `title` is
    the server's name, `setting` the key of the limit, `words` what its log says.
    """
    began, starts = time.monotonic(), 1
    while True:
        this = time.monotonic()
        if wait_until_healthy(child, lambda: healthy(child), limit_s - (this - began), poll_s):  # noqa: B023
            return child
        took, over = time.monotonic() - this, time.monotonic() - began >= limit_s
        ending, said, log = child.ending, words(child), child.log
        lasted = f" (after {took:.0f} s: {ending})" if not child.alive else ""
        child.stop()
        if over:
            again = f", started {starts} times" if starts > 1 else ""
            remedy = f"; raise {setting}, or end other programs" if setting else "; end other programs"
            raise ServerError(f"{title} did not start within {limit_s:g} s{again}{load()}: {said}{remedy} (log: {log})")
        if took < GAVE_UP_S:
            raise ServerError(f"{title} ended while it started{lasted}{load()}: {said} (log: {log})")
        child, starts = start(), starts + 1


def load() -> str:
    """Return what to say of the load of this machine; empty if it is not busy."""
    now, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f", on a busy machine (load {now:.0f} on {cores} cores)" if now > BUSY * cores else ""


def wait_until_healthy(child: Child, healthy: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    """Wait until `child` is `healthy`; False if it ended or `timeout_s` seconds passed first. The child is not stopped."""
    deadline = time.monotonic() + timeout_s
    while not healthy():
        if not child.alive or time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True
