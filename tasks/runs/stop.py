"""Asks the process that works on a run or an evaluation, on whatever machine, to stop."""

import time
from collections.abc import Callable

from nbrl.infra.errors import InfraError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.lease import BEAT_S, LEASE_S, Lease, holder

POLL_S = 0.5
WAIT_S = 2 * LEASE_S  # a beat until it sees the mark, and the time in which its services end


def stop(storage: Storage, layout: RunLayout, say: Callable[[str], None]) -> Lease:
    """Mark the run to be stopped and return once its process has ended: what it last said of itself.

    Raises ConfigError if no process works on it, and InfraError if the process does not end.
    """
    held = holder(storage, layout)
    if held is None:
        raise ConfigError(f"no process works on {layout.title}; there is nothing to stop")
    mark = layout.stop(held.epoch.name)
    storage.create_json(mark, {"asked": time.time()})
    say(f"process {held.pid} on {held.epoch.host} is asked to stop; it looks every {BEAT_S:g} s")
    end = time.monotonic() + WAIT_S
    while (now := holder(storage, layout)) is not None and now.epoch.name == held.epoch.name:
        if time.monotonic() > end:
            raise InfraError(
                f"process {held.pid} on {held.epoch.host} still works on {layout.title} after {WAIT_S:g} s; end it there, or "
                "train the run with --take-over"
            )
        time.sleep(POLL_S)
    storage.delete(mark)  # of a process that died before it saw it
    return held
