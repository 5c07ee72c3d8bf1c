"""The actor between the driver and the ranks: it receives orders, each rank takes them in order, and rank 0 answers."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from nbrl.infra.errors import StorageError
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.orders import Order, Result


@dataclass(frozen=True)
class Answer:
    """Either a result, or the error: an UpdateError if the order was refused, or what kept it from being carried out."""

    result: Result
    error: UpdateError | StorageError | None = None


class Mailbox:
    """Orders are numbered from 0. Every wait is on an event, so an idle rank costs no CPU and no collective can time out."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._orders: list[Order | None] = []
        self._posted = asyncio.Condition()
        self._answers: defaultdict[int, asyncio.Future[Answer]] = defaultdict(asyncio.Future)
        self._up: set[int] = set()
        self._all_up = asyncio.Event()

    async def submit(self, order: Order) -> Answer:
        """Post an order and return its answer."""
        return await self._answers[await self._post(order)]

    async def stop(self) -> None:
        """Let every rank end after its pending orders."""
        await self._post(None)

    async def ready(self) -> None:
        """Return when every rank has loaded the model."""
        await self._all_up.wait()

    async def report_up(self, rank: int) -> None:
        self._up.add(rank)
        if len(self._up) == self._ranks:
            self._all_up.set()

    async def take(self, number: int) -> Order | None:
        """Return order `number`, or None if the loop is to end."""
        async with self._posted:
            await self._posted.wait_for(lambda: len(self._orders) > number)
        return self._orders[number]

    async def answer(self, number: int, answer: Answer) -> None:
        if not self._answers[number].done():  # several ranks may run out of memory
            self._answers[number].set_result(answer)

    async def _post(self, order: Order | None) -> int:
        async with self._posted:
            self._orders.append(order)
            self._posted.notify_all()
            return len(self._orders) - 1
