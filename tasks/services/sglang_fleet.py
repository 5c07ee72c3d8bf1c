"""The fleet of SGLang servers, each in an actor of Ray, which starts again each one that ends or falls silent."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from nbrl.infra.engine.actor import EnginePlan, reserve
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.command import AdapterRoom
from nbrl.infra.engine.settings import MEMORY_SAVER
from nbrl.infra.engine.weight_group import WeightComparison
from nbrl.infra.errors import EngineError, InfraError, PlaceError, PublishError
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.process.shared import Budget
from nbrl.tasks.errors import BrokenInvariantError, UpdateError
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.learner.settings import LoraSettings
from nbrl.tasks.model_folder.check import linear_layers
from nbrl.tasks.rollout.plan import EngineAddress
from nbrl.tasks.services.concurrently import all_of, reported_if_slow
from nbrl.tasks.services.engine import Engine, RemoteEngine, Served
from nbrl.tasks.services.fleet import Finding, WeightSource

T = TypeVar("T")
RESTARTS, WINDOW_S = 5, 600.0
ROOM_S = 30.0  # to find machines, before it is said that they are waited for
LOOK_S = 0.5  # between two looks whether an engine lives
PROBE_S = 5.0  # between two questions whether it answers, and
PROBE_LIMIT_S = 25.0  # for one of them: SGLang itself gives up after 20
SILENT_S = 60.0  # without an answer an engine counts as ended; no single forward pass takes as long


class SglangFleet:
    """An EngineFleet of servers of our own. With `adapters`, so many of the newest checkpoints are served side by side as
    adapters of the initial model, and a publish disturbs no request; without, the newest is served as a complete model.

    No publish runs while an engine is started again, nor the other way round, so that its weights are always those of its
    version. `say` reports each engine that was started again. Engines that `lend` share their GPUs with the learner.
    """

    reports_version = True

    def __init__(
        self,
        engines: Sequence[Engine],
        weights: Served,
        adapters: int = 0,
        say: Callable[[str], None] = lambda text: None,
        lend: bool = False,
    ) -> None:
        self._engines, self._adapters, self._say = engines, adapters, say
        self._lend, self._lent = lend, set[int]()  # numbers of the engines that have lent their memory
        self._served = [[weights] for _ in engines]  # by each, the newest last
        self._starts = [0 for _ in engines]  # how often each was started again
        self._compared: list[tuple[int, Served, WeightComparison] | None] = [
            None for _ in engines
        ]  # what came from a source, in which start
        self._changing = asyncio.Lock()
        self._budget = Budget(RESTARTS, WINDOW_S)
        self._failure: EngineError | None = None
        self._told = False  # what a proof leaves out

    @classmethod
    async def start(
        cls,
        stack: AsyncExitStack,
        plan: EnginePlan,
        initial: PlacedFolder,
        weights: Served,
        say: Callable[[str], None] = lambda text: None,
    ) -> "SglangFleet":
        """Start `plan.settings.count` engines that serve `weights`, of which `initial` is the model. Ray must be running.

        The stack ends them. Raises EngineError if one does not start.
        """
        places = enumerate(reserve(plan.settings, plan.own_gpus))
        engines = [RemoteEngine(plan, number, initial, place) for number, place in places]

        async def stop() -> None:
            await asyncio.gather(*(engine.stop() for engine in engines))

        stack.push_async_callback(stop)
        waits = "the engines wait until the cluster has room for all of them, see engine.resources, GPUs and `ray status`"
        await reported_if_slow(all_of(engine.placed() for engine in engines), ROOM_S, lambda: say(waits))
        await all_of(engine.start([weights]) for engine in engines)
        lend = MEMORY_SAVER in plan.settings.extra_args
        fleet = cls(engines, weights, plan.room.count if plan.room else 0, say, lend)
        watching = [asyncio.create_task(fleet._watch(number)) for number in range(len(engines))]
        stack.push_async_callback(_cancel, watching)
        return fleet

    def addresses(self, version: str) -> list[EngineAddress]:
        clients = [engine.client for engine in self._engines]
        if not self._adapters:
            return [EngineAddress(client.url, key=client.key) for client in clients]
        served = next((each for each in self._served[0] if each.version == version), None)
        if served is None:
            raise BrokenInvariantError(f"weights {version!r} are asked for, and engines serve {self._served[0]}")
        return [EngineAddress(client.url, served.adapter, client.key, version) for client in clients]

    async def lend_memory(self) -> None:
        """Let the learner have the memory of engines that share its GPUs; those that have lent it already are left alone."""
        if self._lend:
            async with self._changing:
                for number in set(range(len(self._engines))) - self._lent:
                    await self._asked(number, lambda client: client.lend_memory())
                    self._lent.add(number)

    async def _take_memory_back(self) -> None:
        for number in sorted(self._lent):
            await self._asked(number, partial(self._take_back, number))

    async def _take_back(self, number: int, client: EngineClient) -> None:
        """Take the memory back; an engine that was started again needs nothing."""
        if number in self._lent:
            await client.take_memory_back()
            self._lent.discard(number)

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        weights = Served(checkpoint, version)
        async with self._changing:
            await self._take_memory_back()
            if source is None or checkpoint is None:
                for number in range(len(self._engines)):
                    await self._publish(number, weights)
                return
            try:
                await self._take(source, checkpoint, version)
            except (InfraError, UpdateError) as error:
                self._say(
                    f"weights {version} did not go from the learner to the engines, which load them from the storage: {error}"
                )
                for number in range(len(self._engines)):
                    if await self._works(number, paused=True):
                        await self._publish(number, weights, torn=True)
                    else:
                        await self._restart(number, self._after(number, weights), "ended while weights were sent")

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        weights = Served(checkpoint, version)
        async with self._changing:
            await self._take_memory_back()
            for number in range(len(self._engines)):
                newest = await self._asked(number, lambda client: client.weights_version())
                if weights not in self._served[number] if self._adapters else newest != version:
                    await self._publish(number, weights)
                    found = await self._asked(number, partial(self._compared_with, number, weights))
                    if found is not None and found.different:  # only one of several members may have failed
                        raise BrokenInvariantError(
                            f"{self._engines[number].name} does not hold weights {version!r} after they were published in it: "
                            f"{found.different[0]} differs from {checkpoint.place if checkpoint else 'the initial model'}; run "
                            "the command again, and if that does not help look into the engine's log"
                        )

    async def prove(self, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        async with self._changing:
            return await all_of(self._prove(number, checkpoint, version, sequences) for number in range(len(self._engines)))

    async def _prove(self, number: int, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> Finding:
        url = self._engines[number].client.url
        served = await self._asked(number, lambda client: client.weights_version())
        if served != version:
            raise BrokenInvariantError(f"engine {url} serves weights {served!r} after publishing {version!r}")
        weights = Served(checkpoint, version)
        adapter = weights.adapter if self._adapters else None
        found = await self._asked(number, partial(self._compared_with, number, weights))
        if unproved := _unproved(found):
            if not self._told:
                self._say(f"after a publish the log-probs are compared, but not every bit: {unproved}")
            self._told = True

        def score(client: EngineClient) -> Awaitable[list[list[float]]]:
            return all_of(client.score(each.token_ids, each.first, adapter) for each in sequences)

        pairs = zip(await self._asked(number, score), sequences, strict=True)
        differences = [a - b for scored, each in pairs for a, b in zip(scored, each.logprobs, strict=True)]
        return Finding(url, differences, found)

    async def _compared_with(self, number: int, weights: Served, client: EngineClient) -> WeightComparison | None:
        """Return how the weights that an engine holds compare with these; None for an adapter, which is not among them."""
        if self._adapters:
            return None
        if (known := self._compared[number]) is not None and known[:2] == (self._starts[number], weights):
            return known[2]
        folder = await self._engines[number].path(weights)
        return await client.compare(folder) if folder is not None else None

    def check_health(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _take(self, source: WeightSource, checkpoint: PlacedFolder, version: str) -> None:
        """Let all engines take a checkpoint from the source."""
        for number in range(len(self._engines)):  # each must be there for any to get something
            await self._asked(number, lambda client: client.weights_version())
        clients = [engine.client for engine in self._engines]
        weights = Served(checkpoint, version)
        if self._adapters:
            await source.adapter(clients, checkpoint.place, version)
            for number in range(len(self._engines)):
                await self._settle(number, weights)
        else:
            comparisons = await source.weights(clients, checkpoint.place, version)
            self._compared = [(start, weights, each) for start, each in zip(self._starts, comparisons, strict=True)]
            self._served = [[weights] for _ in self._engines]

    def _after(self, number: int, weights: Served) -> list[Served]:
        """Return what an engine serves with these weights: of adapters also the newest others for which there is room."""
        others = [each for each in self._served[number] if each.version != weights.version]
        room = max(0, self._adapters - 1)
        return sorted([*others[max(0, len(others) - room) :], weights], key=lambda each: int(each.version)) if room else [weights]

    async def _publish(self, number: int, weights: Served, torn: bool = False) -> None:
        engine = self._engines[number]
        self._compared[number] = None
        try:
            folder = await engine.path(weights)
            if self._adapters:
                await self._load(number, weights, folder, torn)
            elif folder is not None:
                await engine.client.publish(folder, weights.version, torn)
            self._served[number] = self._after(number, weights)
        except EngineError:
            if await self._works(number, paused=torn):
                raise
            await self._restart(number, self._after(number, weights), "ended while weights were published")

    async def _load(self, number: int, weights: Served, folder: Path | None, torn: bool) -> None:
        """Give an engine the adapter in a folder, in place of one of that version; one that is `torn` may have it or not."""
        client = self._engines[number].client
        try:
            if torn:
                with suppress(EngineError):
                    await client.unload_adapter(weights.version)
            elif any(each.checkpoint and each.version == weights.version for each in self._served[number]):
                await client.unload_adapter(weights.version)
            if folder is not None:
                await client.load_adapter(folder, weights.version)
            await self._settle(number, weights)
        except EngineError as error:
            raise PublishError(f"weights {weights.version} did not reach the engine at {client.url}: {error}") from error

    async def _settle(self, number: int, weights: Served) -> None:
        """Name an engine's version by its newest weights, and let it drop the adapters that it no longer needs."""
        client, before, after = self._engines[number].client, self._served[number], self._after(number, weights)
        await client.name(after[-1].version)
        self._served[number] = after
        for each in before:
            if each.checkpoint is not None and each.version not in {kept.version for kept in after}:
                try:
                    await client.unload_adapter(each.version)
                except EngineError as error:
                    raise EngineError(f"the adapter of the weights {each.version} cannot be dropped: {error}") from error

    async def _asked(self, number: int, question: Callable[[EngineClient], Awaitable[T]]) -> T:
        """Return the answer of an engine. One that has ended is started again and then asked."""
        try:
            return await question(self._engines[number].client)
        except EngineError:
            if await self._works(number, paused=number in self._lent):
                raise
            await self._restart(number, self._served[number], "ended")
        return await question(self._engines[number].client)

    async def _works(self, number: int, paused: bool = False) -> bool:
        """Return whether an engine with an error is in order apart from it; a killed one may take a moment to end."""
        await asyncio.sleep(LOOK_S)
        engine = self._engines[number]
        answers = engine.client.listens if paused else engine.client.answers
        return not await engine.ending() and await answers(PROBE_LIMIT_S)

    async def _watch(self, number: int) -> None:
        """Start the engine again whenever it ends or falls silent, until it ended too often."""
        engine = self._engines[number]
        answered = asked = time.monotonic()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                before, now = self._starts[number], time.monotonic()
                if self._changing.locked() or number in self._lent:  # until it is needed, the learner has the GPU
                    answered = asked = now
                elif await engine.ending():
                    await self._revive(number, before, "ended")
                elif now - asked > PROBE_S:
                    asked = now
                    if await engine.client.answers(PROBE_LIMIT_S):
                        answered = time.monotonic()
                    elif time.monotonic() - answered > SILENT_S:
                        await self._revive(number, before, f"did not answer for {SILENT_S:g} s")
        except EngineError as error:
            self._failure = error
        except Exception as error:
            self._failure = EngineError(f"engine {number} cannot be started again: {type(error).__name__}: {error}")

    async def _revive(self, number: int, before: int, what: str) -> None:
        """Start an engine again, unless that has been done since it was looked at."""
        async with self._changing:
            if self._starts[number] == before:
                await self._restart(number, self._served[number], what)

    async def _restart(self, number: int, weights: list[Served], what: str) -> None:
        """Start an engine again with these weights, as often as the budget allows. Raises EngineError beyond it,
        and PlaceError if it finds no place.
        """
        started, engine = time.monotonic(), self._engines[number]
        ending = await engine.ending()
        while True:
            why = f"{engine.name} {what}" + (f" ({ending})" if ending else "")
            if not self._budget.spend():
                raise EngineError(f"{why}, and no more than {self._budget} are made; its log says more: {await engine.log()}")
            self._starts[number] += 1
            self._lent.discard(number)
            try:
                await engine.start(weights)
            except PlaceError:  # it was waited for long enough
                raise
            except EngineError as error:
                what, ending = "could not be started again", str(error)
                continue
            break
        served = await engine.client.weights_version()
        if served != weights[-1].version:
            raise EngineError(f"{engine.name} serves weights {served!r} after a start with {weights[-1].version!r}")
        self._served[number] = weights
        self._say(f"{why}; started again in {time.monotonic() - started:.0f} s, nothing was lost")


def _unproved(weights: WeightComparison | None) -> str:
    """Return in words what has not been compared bit for bit; empty if everything has."""
    if weights is None:
        return "the engines hold an adapter beside their weights"
    if weights.why:
        return weights.why
    if not weights.unproved:
        return ""
    return f"the engines lay out {len(weights.unproved)} parameters in a way of their own, first {weights.unproved[0]}"


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


def adapter_room(lora: LoraSettings | None, initial: Path, lag: int) -> AdapterRoom | None:
    """Return the space that the engines of a training run reserve for adapters, of which the last `lag` still sample beside the
    newest; None if complete weights are published.
    """
    if lora is None or lora.publish == "merged":
        return None
    return AdapterRoom(lora.rank, lora.target_modules or tuple(sorted(linear_layers(str(initial)))), lag + 1)
