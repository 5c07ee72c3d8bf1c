"""The driver's side of the learner."""

import asyncio
import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

import pyarrow as pa
import ray
from ray.actor import ActorHandle

from nbrl.infra.ray_data import here
from nbrl.tasks.errors import LearnerEndedError, LearnerUnplacedError, UpdateError
from nbrl.tasks.learner.driver.ranks import Mailbox, Reply
from nbrl.tasks.learner.orders import AdapterOrder, Offer, OfferOrder, Order, SendOrder, TeachOrder, UpdateOrder, UpdateResult
from nbrl.tasks.learner.places import Places, on_cuda
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.model_folder.check import check_model

# Rollouts and updates alternate on the same cores, so a waiting learner must not keep Ray from placing runners.
CPU_SHARE = 0.01
WAITS_AGAIN = 2  # of a minute, Ray Train's wait for machines
UNPLACED = ("WorkerGroupStartupTimeoutError", "InsufficientClusterResourcesError")  # its own names for that wait's end

Kind = TypeVar("Kind")
Run = Future[BaseException | None]  # resolves to the error that ended the run, None if it was stopped


class LearnerHandle:
    """One long Ray Train run that carries out orders. Ray must be running.

    When the run ends, every wait on it ends with a LearnerEndedError; a failed handle cannot be used again, start another.
    """

    def __init__(self, mailbox: ActorHandle, run: Run) -> None:
        self._mailbox, self._run = mailbox, run

    @classmethod
    def start(
        cls, settings: UpdateSettings, places: Places, notes: str, seed: int = 0, grows: bool = False, again: bool = False
    ) -> Self:
        """Begin to start the run and return at once. Ray Train stores its own files in the local folder `notes`.

        `seed` initialises new weights. If the cluster `grows`, ranks wait for machines that it does not have yet, but not for
        long where a learner is started `again`.

        Raises UpdateError if the settings do not fit the cluster's devices, or the model is not one and lies on this machine.
        """
        if places.model.storage is None:
            check_model(places.model.place)
        cuda = on_cuda(settings, ray.cluster_resources().get("GPU", 0), grows)
        settings = settings.model_copy(update={"dtype": settings.passes_dtype(cuda)})  # the same on all machines
        mailbox: Any = ray.remote(Mailbox).options(num_cpus=0, label_selector=here()).remote(settings.workers)
        run: Run = Future()
        threading.Thread(target=_fit, args=(run, settings, places, notes, mailbox, cuda, seed, grows, again), daemon=True).start()
        return cls(mailbox, run)

    async def ready(self) -> None:
        """Return when every worker has loaded the model."""
        await self._unless_ended(self._mailbox.ready.remote())

    async def update(self, order: UpdateOrder) -> UpdateResult:
        """Carry out an order. Raises UpdateError if it is refused, StorageError or DamagedError if the storage is at fault, and
        LearnerEndedError if the learner has ended.
        """
        return await self._done(order, UpdateResult)

    async def teach(self, order: TeachOrder) -> pa.Table:
        """Return the teacher's log-probs of the order's tokens. Raises as `update`."""
        return await self._done(order, pa.Table)

    async def offer(self, order: OfferOrder) -> Offer:
        """Let rank 0 listen for engines that take weights. Raises as `update`."""
        return await self._done(order, Offer)

    async def send(self, order: SendOrder) -> None:
        """Let rank 0 send what it offered last. Raises as `update`: UpdateError if an engine did not take it."""
        await self._done(order, type(None))

    async def send_adapter(self, order: AdapterOrder) -> None:
        """Let rank 0 send an adapter. Raises as `update`: UpdateError if the engine did not take it."""
        await self._done(order, type(None))

    async def _done(self, order: Order, kind: type[Kind]) -> Kind:
        answer: Reply = await self._unless_ended(self._mailbox.submit.remote(order))
        if answer.error is not None:
            raise answer.error
        if not isinstance(answer.result, kind):
            raise UpdateError("the learner gave no answer")
        return answer.result

    def end(self) -> None:
        """Begin to end the workers after their pending orders, and the run; safe to call on a failed or ended handle."""
        if not self._run.done():
            self._mailbox.stop.remote()

    def stop(self, timeout: float = 30.0) -> str:
        """End the workers, and wait: Ray would end this process if it were shut down while the run's thread still asks for
        something.

        Returns the error with which they ended, if any.

        Ranks that do not look for orders, since they are loading, find the mailbox ended; a rank in a long step is waited for no
        longer than twice the timeout, and ends with the cluster.
        """
        self.end()
        with suppress(TimeoutError):
            error = self._run.result(timeout)
            ray.kill(self._mailbox)
            return _reason(error) if error else ""
        ray.kill(self._mailbox)
        with suppress(TimeoutError):
            self._run.result(timeout)
        return f"no end within {timeout:g} s"

    async def _unless_ended(self, reference: Any) -> Any:
        reply = asyncio.ensure_future(_resolve(reference))
        ended = asyncio.wrap_future(self._run)
        try:
            await asyncio.wait({reply, ended}, return_when=asyncio.FIRST_COMPLETED)
            if reply.done() and reply.exception() is None:
                return reply.result()
            if ended.done():
                cause = ended.result()
                kind = LearnerUnplacedError if _is_unplaced(cause) else LearnerEndedError
                raise kind(f"the learner has ended: {_reason(cause)}") from cause
            raise LearnerEndedError(f"the learner's mailbox is gone: {_reason(reply.exception())}") from reply.exception()
        finally:
            reply.cancel()


def _is_unplaced(cause: BaseException | None) -> bool:
    from ray.train import ControllerError

    return isinstance(cause, ControllerError) and type(cause.controller_failure).__name__ in UNPLACED


def _reason(cause: BaseException | None) -> str:
    """Return the cause in one line; Ray Train's own message has many, with every rank's stack."""
    from ray.train import ControllerError, WorkerGroupError

    if cause is None:
        return "it was stopped"
    if _is_unplaced(cause):
        advice = "see update.workers, update.resources, GPUs and `ray status`"
        return f"no machines of the cluster have room for its ranks, {advice} ({' '.join(str(cause).split())[:160]})"
    if isinstance(cause, WorkerGroupError) and cause.worker_failures:
        rank, failure = min(cause.worker_failures.items())
        return f"rank {rank}: {failure}".splitlines()[0]
    if isinstance(cause, ControllerError):
        cause = cause.controller_failure
    return f"{type(cause).__name__}: {cause}".splitlines()[0]


async def _resolve(reference: Any) -> Any:
    return await reference


def _fit(
    run: Run,
    settings: UpdateSettings,
    places: Places,
    notes: str,
    mailbox: ActorHandle,
    cuda: bool,
    seed: int,
    joined: bool,
    again: bool,
) -> None:
    # Ray Train's preemption watcher costs a process, and any failure ends this run anyway.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    try:
        # Imported here: it takes seconds. TorchTrainer would take more: torch, in this process and in Ray Train's controller.
        from ray.train import FailureConfig, RunConfig, ScalingConfig

        from nbrl.tasks.learner.driver.ranks import LearnerTrainer, MeetThemselves, rank

        trainer = LearnerTrainer(
            rank,
            joined=joined,
            train_loop_config={"settings": settings, "places": places, "mailbox": mailbox, "seed": seed},
            backend_config=MeetThemselves(),
            scaling_config=ScalingConfig(
                num_workers=settings.workers,
                use_gpu=cuda,
                resources_per_worker={"CPU": CPU_SHARE, **settings.resources} | ({"GPU": 1} if cuda else {}),
            ),
            run_config=RunConfig(
                name="learner",
                storage_path=notes,
                failure_config=FailureConfig(
                    max_failures=0,
                    controller_failure_limit=WAITS_AGAIN - 1 if again else -1,  # type: ignore[call-arg]  # it sees another class
                ),
            ),
        )
        trainer.fit()
        run.set_result(None)
    except BaseException as error:
        run.set_result(error)
