"""The process that may write to a run: it takes an epoch, renews the lease, and ends once another takes over."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nbrl.infra.errors import StorageError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import RunError, StoppedError, TakenOverError
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.ending import Ending, ending_of
from nbrl.tasks.runs.epochs import Epoch, check_newest, take
from nbrl.tasks.runs.lease import BEAT_S, LEASE_S, Lease, holder, holder_to_stop, read_lease
from nbrl.tasks.runs.run import Run, find_run, removed_meanwhile
from nbrl.tasks.runs.scope import Scope, Weights

POLL_S = 0.5


@dataclass(frozen=True)
class Writer:
    """The process that may write to a run."""

    run: Run
    epoch: str

    def iteration(self, number: int, weights: Weights) -> Scope:
        """Return the scope of an iteration that samples from `weights`."""
        return self._scope(number, weights)

    def evaluation(self, weights: Weights) -> Scope:
        return self._scope(weights.updates, weights).model_copy(update={"stage": "evaluation"})

    def _scope(self, number: int, weights: Weights) -> Scope:
        run = self.run
        return Scope(
            run=run.name, kind=run.kind, run_id=run.run_id, seed=run.seed, epoch=self.epoch, iteration=number, weights=weights
        )


@asynccontextmanager
async def writing(
    run: Run,
    storage: Storage,
    take_over: bool,
    say: Callable[[str], None],
    settings: dict[str, Any] | None = None,
    commit: str = "",
    keep_ending: bool = False,
) -> AsyncIterator[Writer]:
    """Take an epoch of the run, for a start with these settings in a checkout of this commit, and keep its lease.

    Raises HeldError if another process holds the lease; with `take_over` that one is stopped; and InfraError if the run was
    removed meanwhile. The body is cancelled, and TakenOverError raised, once another process takes the run over; by then nothing
    of this process writes any more. It is cancelled too, and StoppedError raised, once a user asks this process to stop. With
    `keep_ending` this is no start of the run: how and when it ended, the lease says afterwards as before.
    """
    layout = run.layout
    held = await asyncio.to_thread(holder_to_stop, storage, layout, take_over)
    epoch = await asyncio.to_thread(take, storage, layout, settings, commit)
    if await asyncio.to_thread(find_run, storage, run.name, run.kind) != run:
        await asyncio.to_thread(storage.delete, layout.epoch(epoch.name))
        raise removed_meanwhile(layout)
    if held is not None:
        say(f"nbrl: process {held.pid} on {held.epoch.host} is asked to stop; this takes at most {LEASE_S:.0f} s")
        await _until_free(storage, layout, held)
    await asyncio.to_thread(check_newest, storage, layout, epoch.name)
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(thread_name_prefix="writer")
    loop.set_default_executor(threads)
    try:
        async with _renewed(storage, layout, epoch, keep_ending):
            yield Writer(run, epoch.name)
    except TakenOverError:
        # A write goes on in its thread after the task that waited for it was cancelled.
        loop.set_default_executor(ThreadPoolExecutor())
        await asyncio.to_thread(threads.shutdown)
        raise


@asynccontextmanager
async def _renewed(storage: Storage, layout: RunLayout, epoch: Epoch, keep_ending: bool) -> AsyncIterator[None]:
    """Renew the lease while the body runs, and cancel the body when a newer epoch or a mark to stop appears.

    With `keep_ending` the lease has the earlier ending meanwhile, so that a process that is killed loses no more than its time.
    """
    owner = asyncio.current_task()
    assert owner is not None
    ended: list[RunError] = []
    mark = layout.stop(epoch.name)
    earlier = await asyncio.to_thread(read_lease, storage, layout) if keep_ending else None

    def beat() -> None:
        ending = {"status": earlier.status, "reason": earlier.reason} if earlier else {}
        write(Lease(epoch=epoch, beat=time.time()).model_copy(update=ending))

    def let_go(ending: Ending) -> None:
        if earlier is not None:
            write(earlier.model_copy(update={"ended": True}))
        elif keep_ending:
            storage.delete(layout.lease)
        else:
            write(Lease(epoch=epoch, beat=time.time(), ended=True, status=ending.status, reason=ending.reason))

    def write(lease: Lease) -> None:
        storage.write_json(layout.lease, lease.model_dump())

    def look() -> None:
        check_newest(storage, layout, epoch.name)
        if storage.exists(mark):
            raise StoppedError(f"{layout.title} was stopped by `nbrl stop`")

    async def renew() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await asyncio.to_thread(look)
                await asyncio.to_thread(beat)
            except (TakenOverError, StoppedError) as error:
                ended.append(error)
                owner.cancel()
                return
            except StorageError:  # the next beat may succeed; a commit finds out whether the run is still ours
                continue

    await asyncio.to_thread(beat)
    renewal = asyncio.create_task(renew())
    ending = Ending("FINISHED")
    try:
        yield
    except BaseException as error:
        ending = ending_of(error)
        if ended:  # the body was cancelled; what it makes of that, such as a service that was cut off, says less
            ending = ending_of(ended[0])
            owner.uncancel()
            raise ended[0] from (None if isinstance(error, asyncio.CancelledError) else error)
        if ending.status == "FAILED" and (taken := _taken_over(storage, layout, epoch)) is not None:
            ending = ending_of(taken)
            raise taken from error
        raise
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)
        with contextlib.suppress(StorageError):
            storage.delete(mark)
            held = holder(storage, layout)
            if held is not None and held.epoch.name == epoch.name:  # not that of the process that took over, and waits for this
                let_go(ending)


def _taken_over(storage: Storage, layout: RunLayout, epoch: Epoch) -> TakenOverError | None:
    """Return whether another process has taken the run over, and deletes its work, which can cause any error here."""
    try:
        check_newest(storage, layout, epoch.name)
    except TakenOverError as taken:
        return taken
    except StorageError:
        pass
    return None


async def _until_free(storage: Storage, layout: RunLayout, held: Lease) -> None:
    """Wait until the holder has seen the newer epoch and ended, or its lease has run out."""
    lease: Lease | None = held
    end = time.monotonic() + held.remaining  # on our own clock alone: the holder's may be ahead by hours
    while lease is not None and lease.epoch.name == held.epoch.name and time.monotonic() < end:
        await asyncio.sleep(POLL_S)
        lease = await asyncio.to_thread(holder, storage, layout)
