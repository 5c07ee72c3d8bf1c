"""The interface between the training loop and any kind of inference engine."""

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.weight_group import WeightComparison, WeightGroup
from nbrl.infra.errors import EngineError
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.learner.orders import AdapterOrder, Offer, OfferOrder, SendOrder
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.rollout.plan import EngineAddress

T = TypeVar("T")


class Finding(NamedTuple):
    """What one engine answered to a proof: its log-probs less the trainer's, and what it found of its weights.

    `weights` is None where an adapter is served, which is not among them.
    """

    engine: str
    differences: list[float]
    weights: WeightComparison | None


class WeightSource(Protocol):
    """Gives the weights of a checkpoint to engines without a storage between."""

    async def weights(self, clients: Sequence[EngineClient], checkpoint: str, version: str) -> list[WeightComparison]:
        """Bring a model's weights into all engines at once, and say of each how they compare with what was sent.

        Raises InfraError or UpdateError, once all has ended, if one engine did not get all of them; then no engine answers
        requests until weights are published in it.
        """
        ...

    async def adapter(self, clients: Sequence[EngineClient], checkpoint: str, version: str) -> None:
        """Bring an adapter into all engines, one after the other. Raises as `weights`."""
        ...


class EngineFleet(Protocol):
    """Engines that all serve the same weights: one version of them or, as adapters, the newest ones side by side. A second kind
    of engine is another class with these methods.
    """

    def addresses(self, version: str) -> list[EngineAddress]:
        """One address per engine, for requests to the weights `version`; they may change."""
        ...

    @property
    def tells_version(self) -> bool:
        """Whether each sampled action names the version of the weights that sampled it."""
        ...

    async def lend_memory(self) -> None:
        """Give the learner what memory of shared GPUs it can use, until weights are published or served; no request may be in
        flight.
        """
        ...

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        """Make every engine serve a checkpoint, or the initial model if it is None, under the name `version`. Weights come from
        the `source`, or else, or where that fails, from the checkpoint's place.

        Raises EngineError if one of them does not.
        """
        ...

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        """Publish again in the engines that do not serve this version.

        Raises BrokenInvariantError if one of them then holds other weights.
        """
        ...

    async def prove(self, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        """Return what each engine has of a checkpoint that was published as `version`.

        Raises BrokenInvariantError if an engine serves another version.
        """
        ...

    def check_health(self) -> None:
        """Raises EngineError as soon as an engine has ended for good, so that nobody waits for it."""
        ...


class EndpointFleet:
    """An EngineFleet for evaluations. What weights the server has is not known, so that nothing is checked about them."""

    tells_version = False

    def __init__(self, url: str) -> None:
        self._url = url

    def addresses(self, version: str) -> list[EngineAddress]:
        return [EngineAddress(self._url)]

    async def lend_memory(self) -> None:
        """The server's memory is its own."""

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        raise BrokenInvariantError(f"weights cannot be published to {self._url}")

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        """The server serves what it serves."""

    async def prove(self, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        raise BrokenInvariantError(f"{self._url} is not known to serve weights of ours")

    def check_health(self) -> None:
        """A server that is away is found out by those who ask it."""


class SendingLearner(Protocol):
    """What a learner does for it: see LearnerHandle."""

    async def offer(self, order: OfferOrder) -> Offer: ...

    async def send(self, order: SendOrder) -> None: ...

    async def send_adapter(self, order: AdapterOrder) -> None: ...


class WeightBroadcast:
    """A WeightSource. Each publish forms a group of its own, because a group cannot change when an engine is started again."""

    def __init__(self, learner: SendingLearner, ranks: int, gpus: bool, cluster: bool, limit_s: float) -> None:
        """`ranks`: GPUs of one engine. `gpus`: engines have GPUs that the learner does not use. `cluster`: they may be on other
        machines than rank 0. `limit_s`: of each wait.
        """
        self._learner, self._ranks, self._gpus, self._cluster, self._limit_s = learner, ranks, gpus, cluster, limit_s

    async def weights(self, clients: Sequence[EngineClient], checkpoint: str, version: str) -> list[WeightComparison]:
        order = OfferOrder(checkpoint=checkpoint, cluster=self._cluster, limit_s=self._limit_s)
        offer = await self._within(self._learner.offer(order), "offer weights")
        whole = WeightGroup(
            name=f"weights-{secrets.token_hex(8)}",  # what is left of an earlier group must not be met
            address=offer.address,
            port=offer.port,
            backend="nccl" if self._gpus and offer.cuda else "gloo",
            size=1 + self._ranks * len(clients),
            rank=0,
        )
        sending = asyncio.ensure_future(self._learner.send(SendOrder(group=whole)))
        groups = [replace(whole, rank=1 + self._ranks * number) for number in range(len(clients))]
        taking = [client.receive(group, offer.buckets, version) for client, group in zip(clients, groups, strict=True)]
        try:
            found = await asyncio.gather(*taking, return_exceptions=True)
            await self._within(sending, "end sending")
        finally:
            sending.cancel()
        return _whole(found)

    async def adapter(self, clients: Sequence[EngineClient], checkpoint: str, version: str) -> None:
        for client in clients:  # rank 0 carries out one order after the other
            order = AdapterOrder(checkpoint=checkpoint, version=version, url=client.url, key=client.key, limit_s=client.timeout)
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
