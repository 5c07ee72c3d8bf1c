"""The driver's and Ray Train's side of the ranks. It imports no torch, which would take both seconds."""

import asyncio
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from nbrl.infra.errors import StorageError
from nbrl.infra.process.garbage import without_collection
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.orders import Order, Result


class _Backend(Backend):
    share_cuda_visible_devices = True  # NCCL reaches the GPUs of other ranks on the same machine


@dataclass
class MeetThemselves(BackendConfig):
    """Lets ranks join their process group by themselves (worker.py)."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend


def rank(config: dict[str, Any]) -> None:
    """Run a rank in the process that Ray Train started for it."""
    sys.modules["scipy"] = None  # type: ignore[assignment]  # transformers would import much of it, for losses of object detection
    # Batches of many lengths would leave a GPU's memory in pieces; torch reads it when it is imported.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with without_collection():
        from nbrl.tasks.learner.driver.worker import loop

    loop(config)


class LearnerTrainer(DataParallelTrainer):
    """Its ranks get their data in orders, so that there is no actor for datasets. The actor that gives back the ranks' room when
    Ray Train's controller died asks Ray's dashboard, which only a cluster that was `joined` may have.
    """

    def __init__(self, *given: Any, joined: bool, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unused = (DatasetsCallback,) if joined else (DatasetsCallback, PlacementGroupCleanerCallback)

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, self._unused)]


@dataclass(frozen=True)
class Reply:
    """Either a result, or the error: an UpdateError if the order was refused, or the fault that stopped it."""

    result: Result
    error: UpdateError | StorageError | None = None


class Mailbox:
    """Orders are numbered from 0. Every wait is on an event, so an idle rank costs no CPU and no collective can time out."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._orders: list[Order | None] = []
        self._posted = asyncio.Condition()
        self._answers: defaultdict[int, asyncio.Future[Reply]] = defaultdict(asyncio.Future)
        self._up: set[int] = set()
        self._all_up = asyncio.Event()

    async def submit(self, order: Order) -> Reply:
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

    async def answer(self, number: int, answer: Reply) -> None:
        if not self._answers[number].done():  # several ranks may run out of memory
            self._answers[number].set_result(answer)

    async def _post(self, order: Order | None) -> int:
        async with self._posted:
            self._orders.append(order)
            self._posted.notify_all()
            return len(self._orders) - 1
