"""The learner of a run, which is started again when it has ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pyarrow as pa

from nbrl.infra.process.shared import Budget
from nbrl.tasks.errors import LearnerEndedError, LearnerUnplacedError
from nbrl.tasks.learner.driver.handle import LearnerHandle
from nbrl.tasks.learner.orders import AdapterOrder, Offer, OfferOrder, SendOrder, TeachOrder, UpdateOrder, UpdateResult

T = TypeVar("T")
RESTARTS, WINDOW_S = 3, 600.0
STOP_S = 15.0  # a loaded machine takes so long; Ray would end this process if it were shut down before the run has ended


class LearnerService:
    """Carries out orders. One that a learner did not survive is given to the next: it is a pure function of its files.

    `start` begins to start a learner, numbered from 0; `say` reports each one that was started again. `limit_s`: of an update,
    and of the start of a learner after one that ended; the first may wait for room.
    """

    def __init__(self, start: Callable[[int], LearnerHandle], say: Callable[[str], None], limit_s: float) -> None:
        self._start, self._say, self._limit_s = start, say, limit_s
        self._started, self._up = 0, False
        self._handle = self._next()
        self._budget = Budget(RESTARTS, WINDOW_S)

    async def ready(self) -> None:
        """Return when every worker of the first learner has loaded the model. Raises LearnerEndedError if one does not."""
        if not self._up:
            await self._handle.ready()
            self._up = True

    async def update(self, order: UpdateOrder) -> UpdateResult:
        """Carry out an order, once the first learner is ready. Raises UpdateError if it is refused, and LearnerEndedError if
        the first one does not get ready, learners end too often, or one gives no answer in time: ranks that hang end with the
        cluster only.
        """
        each = f", and as much for each of {len(order.repeats)} that were to be repeated" if order.repeats else ""
        return await self._carried_out(lambda handle: handle.update(order), 1 + len(order.repeats), each)

    async def teach(self, order: TeachOrder) -> pa.Table:
        """Return the teacher's log-probs of the order's tokens. Raises as `update`."""
        return await self._carried_out(lambda handle: handle.teach(order))

    async def _carried_out(self, work: Callable[[LearnerHandle], Awaitable[T]], times: int = 1, each: str = "") -> T:
        await self.ready()
        while True:
            try:
                return await asyncio.wait_for(work(self._handle), self._limit_s * times)
            except TimeoutError as error:
                limit = f"{self._limit_s:g} s (update.timeout_s{each})"
                reason = f"the update took longer than {limit}: does a rank hang, or its storage?"
                raise LearnerEndedError(reason) from error
            except LearnerEndedError as error:
                await self._replace(error)

    async def offer(self, order: OfferOrder) -> Offer:
        """Let the present learner offer weights. Raises LearnerEndedError if it has ended: the next update starts another."""
        await self.ready()
        return await self._handle.offer(order)

    async def send(self, order: SendOrder) -> None:
        """Let the present learner, which made the offer, send weights. Raises as `offer`."""
        await self.ready()
        await self._handle.send(order)

    async def send_adapter(self, order: AdapterOrder) -> None:
        """Let the present learner send an adapter. Raises as `offer`."""
        await self.ready()
        await self._handle.send_adapter(order)

    def end(self) -> None:
        """Begin to end the present learner. `stop` waits until it has ended."""
        self._handle.end()

    async def stop(self) -> None:
        await asyncio.to_thread(self._handle.stop, STOP_S)

    async def finish(self) -> None:
        """Stop as `stop` does, once the state of the last checkpoint is there."""
        if error := await asyncio.to_thread(self._handle.stop, self._limit_s):
            self._say(f"nbrl: warning: the last checkpoint may lack its optimiser's state: the learner ended with {error}")

    async def _replace(self, error: LearnerEndedError) -> None:
        """Start the next learner, and further ones if it does not get ready."""
        began, reason = time.monotonic(), error
        while True:
            await asyncio.to_thread(self._handle.stop, STOP_S)
            if not self._budget.spend():
                raise LearnerEndedError(f"{reason}, and no more than {self._budget} are made") from reason
            self._handle = self._next()
            try:
                await asyncio.wait_for(self._handle.ready(), self._limit_s)
            except TimeoutError:
                reason = LearnerEndedError(f"the learner was not ready again within {self._limit_s:g} s (update.timeout_s)")
                continue
            except LearnerUnplacedError:  # they were waited for long enough
                raise
            except LearnerEndedError as again:
                reason = again
                continue
            self._say(f"{error}; started again in {time.monotonic() - began:.0f} s, its order is carried out again")
            return

    def _next(self) -> LearnerHandle:
        self._started += 1
        return self._start(self._started - 1)
