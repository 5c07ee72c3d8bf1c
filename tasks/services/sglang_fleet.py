"""The fleet of SGLang servers on this machine, which starts again each one that ends or falls silent."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from nbrl.infra.engine.client import ADAPTER as POLICY
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.command import AdapterRoom
from nbrl.infra.engine.comparison import Comparison
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.infra.process.budget import Budget
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout import ADAPTER, HF
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.learner.settings import LoraSettings
from nbrl.tasks.model_folder.check import linear_layers
from nbrl.tasks.services.concurrently import all_of
from nbrl.tasks.services.fleet import EngineAddress, Finding

T = TypeVar("T")
RESTARTS, WINDOW_S = 5, 600.0
LOOK_S = 0.5  # between two looks whether an engine lives
PROBE_S = 5.0  # between two questions whether it answers, and
PROBE_LIMIT_S = 25.0  # for one of them: SGLang itself gives up after 20
SILENT_S = 60.0  # without an answer an engine counts as ended; no single forward pass takes as long


class Served(NamedTuple):
    """What an engine serves: a checkpoint, or the initial model if it is None, and its name."""

    checkpoint: Path | None
    version: str


class SglangFleet:
    """An EngineFleet of servers of our own. `room` is the space that they reserve for adapters; without it complete models are
    published.

    Nobody publishes while an engine is started again, nor the other way round, so that its weights are always those of its
    version. `say` tells of each engine that was started again.
    """

    tells_version = True

    def __init__(
        self,
        servers: list[EngineServer],
        clients: list[EngineClient],
        initial: Path,
        room: AdapterRoom | None,
        weights: Served | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._servers, self._clients, self._initial, self._room, self._say = servers, clients, initial, room, say
        self._weights = [weights or Served(None, "initial") for _ in clients]
        self._changing = asyncio.Lock()
        self._budget = Budget(RESTARTS, WINDOW_S)
        self._failure: EngineError | None = None
        self._told = False  # what a proof leaves out

    @classmethod
    async def start(
        cls,
        stack: AsyncExitStack,
        settings: EngineSettings,
        initial: Path,
        logs: Path,
        version: str,
        checkpoint: Path | None = None,
        room: AdapterRoom | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> "SglangFleet":
        """Start `settings.count` engines that serve `checkpoint`, or `initial` if it is None, as `version`.

        The stack ends them. Raises EngineError if one does not start.
        """
        model = initial if room or checkpoint is None else checkpoint / HF
        servers: list[EngineServer] = []

        def stop() -> None:
            for server in servers:
                server.stop()

        stack.callback(stop)
        for number in range(settings.count):
            servers.append(launch(settings, model, logs, index=number, room=room, version=version))
        await asyncio.to_thread(wait, servers)
        clients = [server.client() for server in servers]
        for client in clients:
            stack.push_async_callback(client.close)
        fleet = cls(servers, clients, initial, room, Served(checkpoint, version), say)
        if room and checkpoint is not None:
            await fleet.publish(checkpoint, version)
        watching = [asyncio.create_task(fleet._watch(number)) for number in range(settings.count)]
        stack.push_async_callback(_cancel, watching)
        return fleet

    @property
    def addresses(self) -> list[EngineAddress]:
        return [EngineAddress(client.url, client.adapter) for client in self._clients]

    async def publish(self, checkpoint: Path | None, version: str) -> None:
        async with self._changing:
            for number in range(len(self._clients)):
                await self._publish(number, Served(checkpoint, version))

    async def serve(self, version: str, bring: Callable[[], Awaitable[Path | None]]) -> None:
        async with self._changing:
            count = range(len(self._clients))
            others = [number for number in count if await self._asked(number, lambda client: client.weights_version()) != version]
            if not others:
                return
            checkpoint = await bring()
            for number in others:
                await self._publish(number, Served(checkpoint, version))

    async def prove(self, checkpoint: Path, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        async with self._changing:
            return await all_of(self._prove(number, checkpoint, version, sequences) for number in range(len(self._clients)))

    async def _prove(self, number: int, checkpoint: Path, version: str, sequences: Sequence[ProofSequence]) -> Finding:
        url = self._clients[number].url
        served = await self._asked(number, lambda client: client.weights_version())
        if served != version:
            raise BrokenInvariantError(f"engine {url} serves weights {served!r} after publishing {version!r}")
        weights = None if self._room else await self._asked(number, lambda client: client.compare(checkpoint / HF))
        if unproved := _unproved(weights):
            if not self._told:
                self._say(f"after a publish the log-probs are compared, but not every bit: {unproved}")
            self._told = True

        def score(client: EngineClient) -> Awaitable[list[list[float]]]:
            return all_of(client.score(each.token_ids, each.first) for each in sequences)

        pairs = zip(await self._asked(number, score), sequences, strict=True)
        differences = [a - b for scored, each in pairs for a, b in zip(scored, each.logprobs, strict=True)]
        return Finding(url, differences, weights)

    def check_health(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _publish(self, number: int, weights: Served) -> None:
        try:
            if self._room:
                folder = weights.checkpoint / ADAPTER if weights.checkpoint else None
                await self._clients[number].publish_adapter(folder, weights.version)
            else:
                await self._clients[number].publish(self._model(weights), weights.version)
        except EngineError:
            if await self._works(number):
                raise
            await self._restart(number, weights, "ended while weights were published")
        self._weights[number] = weights

    async def _asked(self, number: int, question: Callable[[EngineClient], Awaitable[T]]) -> T:
        """The answer of an engine. One that has ended is started again and then asked."""
        try:
            return await question(self._clients[number])
        except EngineError:
            if await self._works(number):
                raise
            await self._restart(number, self._weights[number], "ended")
        return await question(self._clients[number])

    async def _works(self, number: int) -> bool:
        """Whether an engine with an error is in order apart from it; a killed one may take a moment to end."""
        await asyncio.sleep(LOOK_S)
        return self._servers[number].alive() and await self._clients[number].answers(PROBE_LIMIT_S)

    async def _watch(self, number: int) -> None:
        """Start the engine again whenever it ends or falls silent, until it ended too often."""
        answered = asked = time.monotonic()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                server, now = self._servers[number], time.monotonic()
                if self._changing.locked():
                    answered = asked = now
                elif not server.alive():
                    await self._revive(number, server, "ended")
                elif now - asked > PROBE_S:
                    asked = now
                    if await self._clients[number].answers(PROBE_LIMIT_S):
                        answered = time.monotonic()
                    elif server.alive() and time.monotonic() - answered > SILENT_S:
                        await self._revive(number, server, f"did not answer for {SILENT_S:g} s")
        except EngineError as error:
            self._failure = error
        except Exception as error:
            self._failure = EngineError(f"engine {number} cannot be started again: {type(error).__name__}: {error}")

    async def _revive(self, number: int, server: EngineServer, what: str) -> None:
        """Start an engine again, unless that has been done since it was looked at."""
        async with self._changing:
            if self._servers[number] is server:
                await self._restart(number, self._weights[number], what)

    async def _restart(self, number: int, weights: Served, what: str) -> None:
        """Start an engine again with these weights, as often as the budget allows. Raises EngineError beyond it."""
        started, adapter = time.monotonic(), weights.checkpoint / ADAPTER if self._room and weights.checkpoint else None
        while True:
            server = self._servers[number]
            why = f"{server.name} {what}" + ("" if server.alive() else f" ({server.ending()})")
            await asyncio.to_thread(server.stop)
            if not self._budget.spend():
                raise EngineError(f"{why}, and no more than {self._budget} are made; its log says more: {server.log}")
            # Without a thread: if this is cancelled, no server may be started that nobody ends.
            self._servers[number] = server.again(self._model(weights), weights.version, adapter)
            try:
                await asyncio.to_thread(wait, [self._servers[number]])
            except EngineError:
                what = "ended while it was started again"
                continue
            break
        client = self._clients[number]
        client.adapter = POLICY if adapter else None
        served = await client.weights_version()
        if served != weights.version:
            raise EngineError(f"{server.name} serves weights {served!r} after a start with {weights.version!r}")
        self._weights[number] = weights
        self._say(f"{why}; started again in {time.monotonic() - started:.0f} s, nothing was lost")

    def _model(self, weights: Served) -> Path:
        return self._initial if self._room or weights.checkpoint is None else weights.checkpoint / HF


def _unproved(weights: Comparison | None) -> str:
    """In words, what has not been compared bit for bit; empty if everything has."""
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


def adapter_room(lora: LoraSettings | None, initial: Path) -> AdapterRoom | None:
    """The space that the engines of a training run reserve for adapters; None if complete weights are published."""
    if lora is None or lora.publish == "merged":
        return None
    return AdapterRoom(lora.rank, lora.target_modules or tuple(sorted(linear_layers(str(initial)))))
