"""The lease of a run: a file that its writer renews, so that a second process learns whom it would disturb.

The lease spares work. Safety comes from the epochs: two processes that both believe to hold a run cannot mix their results.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from nbrl.infra.errors import DamagedError, InfraError, MissingError, StorageError
from nbrl.infra.process.identity import is_running
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import TakenOverError
from nbrl.tasks.layout import RunLayout
from nbrl.tasks.runs.epochs import Epoch, check_newest, take
from nbrl.tasks.runs.run import Run, removed_meanwhile
from nbrl.tasks.runs.scope import Scope, Weights

BEAT_S = 10.0
LEASE_S = 60.0  # without a beat for so long, the holder is taken for dead
POLL_S = 0.5


class Lease(BaseModel):
    """`beat`: the holder's clock when it last renewed the lease, in seconds since 1970. `ended`: it has let go."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epoch: Epoch
    beat: float
    ended: bool = False

    @property
    def age(self) -> float:
        """Seconds since the last beat, as far as the clocks of two machines agree."""
        return max(0.0, time.time() - self.beat)

    @property
    def is_held(self) -> bool:
        running = is_running(self.epoch.process)
        return not self.ended and (self.age < LEASE_S if running is None else running)


@dataclass(frozen=True)
class Writer:
    """The process that may write to a run."""

    run: Run
    epoch: str

    def iteration(self, number: int, weights: Weights) -> Scope:
        """The scope of an iteration that samples from `weights`."""
        return self._scope(number, weights)

    def evaluation(self, weights: Weights) -> Scope:
        return self._scope(weights.updates, weights).model_copy(update={"stage": "evaluation"})

    def _scope(self, number: int, weights: Weights) -> Scope:
        run = self.run
        return Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch=self.epoch, iteration=number, weights=weights)


@asynccontextmanager
async def writing(
    run: Run, storage: Storage, take_over: bool, say: Callable[[str], None], settings: dict[str, Any] | None = None
) -> AsyncIterator[Writer]:
    """Take an epoch of the run, for a start with these settings, and keep its lease.

    Raises InfraError if another process holds the lease; with `take_over` that one is stopped; and InfraError if the run was
    removed meanwhile. The body is cancelled, and TakenOverError raised, once another process takes the run over; by then nothing
    of this process writes any more.
    """
    layout = run.layout
    held = await asyncio.to_thread(_holder, storage, layout)
    if held is not None and not take_over:
        raise InfraError(f"{_told(layout, held)}; wait for it to end, or add --take-over to stop it and continue here")
    epoch = await asyncio.to_thread(take, storage, layout, settings)
    if not await asyncio.to_thread(storage.exists, layout.identity):
        await asyncio.to_thread(storage.delete, layout.epoch(epoch.name))
        raise removed_meanwhile(run.name)
    if held is not None:
        say(f"nbrl: process {_pid(held)} on {held.epoch.host} is told to stop; this takes at most {LEASE_S:.0f} s")
        await _until_free(storage, layout, held)
    await asyncio.to_thread(check_newest, storage, layout, epoch.name)
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(thread_name_prefix="writer")
    loop.set_default_executor(threads)
    try:
        async with _renewed(storage, layout, epoch):
            yield Writer(run, epoch.name)
    except TakenOverError:
        # A write goes on in its thread after the task that waited for it was cancelled.
        loop.set_default_executor(ThreadPoolExecutor())
        await asyncio.to_thread(threads.shutdown)
        raise


@asynccontextmanager
async def _renewed(storage: Storage, layout: RunLayout, epoch: Epoch) -> AsyncIterator[None]:
    """Renew the lease while the body runs, and cancel the body when a newer epoch appears."""
    owner = asyncio.current_task()
    assert owner is not None
    lost: list[TakenOverError] = []

    def beat(ended: bool = False) -> None:
        storage.write_json(layout.lease, Lease(epoch=epoch, beat=time.time(), ended=ended).model_dump())

    async def renew() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await asyncio.to_thread(check_newest, storage, layout, epoch.name)
                await asyncio.to_thread(beat)
            except TakenOverError as error:
                lost.append(error)
                owner.cancel()
                return
            except StorageError:  # the next beat may succeed; a commit finds out whether the run is still ours
                continue

    await asyncio.to_thread(beat)
    renewal = asyncio.create_task(renew())
    try:
        yield
    except asyncio.CancelledError:
        if lost:
            owner.uncancel()
            raise lost[0] from None
        raise
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)
        with contextlib.suppress(StorageError):
            held = _holder(storage, layout)
            if held is not None and held.epoch.name == epoch.name:  # not that of who took over, and waits for this
                beat(ended=True)


def check_free(storage: Storage, layout: RunLayout) -> None:
    """Raises InfraError if a process trains the run."""
    if (held := _holder(storage, layout)) is not None:
        raise InfraError(f"{_told(layout, held)}; wait for it to end")


def _told(layout: RunLayout, held: Lease) -> str:
    return (
        f"run {layout.name!r} is being trained by process {_pid(held)} on {held.epoch.host}, last heard of {held.age:.0f} s ago"
    )


def _holder(storage: Storage, layout: RunLayout) -> Lease | None:
    """The lease of the run, if a process that may be alive holds it."""
    try:
        lease = Lease.model_validate(storage.read_json(layout.lease))
    except (MissingError, DamagedError, ValidationError):
        return None
    return lease if lease.is_held else None


async def _until_free(storage: Storage, layout: RunLayout, held: Lease) -> None:
    """Wait until the holder has seen the newer epoch and ended, or its lease has run out."""
    lease: Lease | None = held
    end = time.monotonic() + LEASE_S - held.age  # on our own clock alone: the holder's may be ahead by hours
    while lease is not None and lease.epoch.name == held.epoch.name and time.monotonic() < end:
        await asyncio.sleep(POLL_S)
        lease = await asyncio.to_thread(_holder, storage, layout)


def _pid(lease: Lease) -> str:
    return lease.epoch.process.rsplit("/", 2)[1]
