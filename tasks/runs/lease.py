"""The lease of a run: a file that its writer renews, so that a second process learns which one it would disturb.

The lease spares work. Safety comes from the epochs: two processes that both believe to hold a run cannot mix their results.
"""

import time
from typing import Literal

from pydantic import ValidationError

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, HeldError, MissingError
from nbrl.infra.process.identity import is_running
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.ending import SILENT, Ending, Status
from nbrl.tasks.runs.epochs import Epoch

BEAT_S = 10.0
LEASE_S = 60.0  # without a beat for so long, the holder is taken for dead


class Lease(ClosedModel):
    """`beat`: the holder's clock when it last renewed the lease, in seconds since 1970. `ended`: the holder released it.

    `status` and `reason` say how the run's newest start ended; they are empty until then. A process that works on a run without
    starting it keeps them.
    """

    epoch: Epoch
    beat: float
    ended: bool = False
    status: Status | Literal[""] = ""
    reason: str = ""

    @property
    def age(self) -> float:
        """Return the seconds since the last beat, as far as the clocks of two machines agree."""
        return max(0.0, time.time() - self.beat)

    @property
    def remaining(self) -> float:
        """Return the seconds after which the holder is taken for dead unless it renews the lease."""
        return LEASE_S - self.age

    @property
    def pid(self) -> str:
        """Return the holder's number on its machine."""
        return self.epoch.process.split("/")[-2:][0]

    @property
    def is_held(self) -> bool:
        running = is_running(self.epoch.process)
        return not self.ended and (self.remaining > 0 if running is None else running)


def last_ending(storage: Storage, layout: RunLayout) -> tuple[Ending, float | None]:
    """Return how and when (seconds since 1970) the newest start of an idle run ended, as far as its lease says."""
    if (lease := read_lease(storage, layout)) is None:
        return Ending("KILLED", SILENT), None
    return (Ending(lease.status, lease.reason) if lease.status else Ending("KILLED", SILENT)), lease.beat


def check_free(storage: Storage, layout: RunLayout) -> None:
    """Raises HeldError if a process trains the run."""
    if (held := holder(storage, layout)) is not None:
        raise HeldError(f"{_held(layout, held)}; wait for it to end")


def holder_to_stop(storage: Storage, layout: RunLayout, take_over: bool) -> Lease | None:
    """Return the lease of a process that works on the run and that `take_over` stops. Raises HeldError without it."""
    held = holder(storage, layout)
    if held is not None and not take_over:
        raise HeldError(f"{_held(layout, held)}; wait for it to end, or add --take-over to stop it and continue here")
    return held


def _held(layout: RunLayout, held: Lease) -> str:
    return (
        f"{layout.title} is being worked on by process {held.pid} on {held.epoch.host}, with its last sign {held.age:.0f} s ago"
    )


def holder(storage: Storage, layout: RunLayout) -> Lease | None:
    """Return the lease of the run, if a process that may be alive holds it."""
    lease = read_lease(storage, layout)
    return lease if lease is not None and lease.is_held else None


def read_lease(storage: Storage, layout: RunLayout) -> Lease | None:
    """Return the lease; None if there is none that can be read."""
    try:
        return Lease.model_validate(storage.read_json(layout.lease))
    except (MissingError, DamagedError, ValidationError):
        return None
