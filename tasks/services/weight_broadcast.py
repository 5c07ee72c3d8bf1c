"""Weights from rank 0 of the learner straight into the engines."""

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from nbrl.infra.engine.weight_group import WeightComparison, WeightGroup
from nbrl.infra.errors import EngineError
from nbrl.tasks.learner.orders import AdapterOrder, Offer, OfferOrder, SendOrder
from nbrl.tasks.services.fleet import WeightReceiver

T = TypeVar("T")


class SendingLearner(Protocol):
    """The methods of a learner that it uses: see LearnerHandle."""

    async def offer(self, order: OfferOrder) -> Offer: ...

    async def send(self, order: SendOrder) -> None: ...

    async def send_adapter(self, order: AdapterOrder) -> None: ...


class WeightBroadcast:
    """A WeightSource. Each publish forms a group of its own, because a group cannot change when an engine is started again."""

    def __init__(self, learner: SendingLearner, ranks: int, gpus: bool, cluster: bool, limit_s: float) -> None:
        """Make a source. `ranks`: GPUs of one engine. `gpus`: engines have GPUs that the learner does not use. `cluster`: they
        may be on other machines than rank 0. `limit_s`: of each wait.
        """
        self._learner, self._ranks, self._gpus, self._cluster, self._limit_s = learner, ranks, gpus, cluster, limit_s

    async def weights(self, engines: Sequence[WeightReceiver], checkpoint: str, version: str) -> list[WeightComparison]:
        order = OfferOrder(checkpoint=checkpoint, cluster=self._cluster, limit_s=self._limit_s)
        offer = await self._within(self._learner.offer(order), "offer weights")
        whole = WeightGroup(
            name=f"weights-{secrets.token_hex(8)}",  # what is left of an earlier group must not be met
            address=offer.address,
            port=offer.port,
            backend="nccl" if self._gpus and offer.cuda else "gloo",
            size=1 + self._ranks * len(engines),
            rank=0,
        )
        sending = asyncio.ensure_future(self._learner.send(SendOrder(group=whole)))
        groups = [replace(whole, rank=1 + self._ranks * number) for number in range(len(engines))]
        taking = [engine.receive(group, offer.buckets, version) for engine, group in zip(engines, groups, strict=True)]
        try:
            results = await asyncio.gather(*taking, return_exceptions=True)
            await self._within(sending, "end sending")
        finally:
            sending.cancel()
        return _whole(results)

    async def adapter(self, engines: Sequence[WeightReceiver], checkpoint: str, version: str) -> None:
        for engine in engines:  # rank 0 carries out one order after the other
            order = AdapterOrder(checkpoint=checkpoint, version=version, url=engine.url, key=engine.key, limit_s=engine.timeout)
            await self._within(self._learner.send_adapter(order), "send an adapter")

    async def _within(self, answer: Awaitable[T], what: str) -> T:
        try:
            return await asyncio.wait_for(answer, self._limit_s)
        except TimeoutError as error:
            raise EngineError(f"the learner did not {what} within {self._limit_s:g} s") from error


def _whole(found: Sequence[T | BaseException]) -> list[T]:
    """Return all results. Raises the first error."""
    results: list[T] = []
    for each in found:
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results
