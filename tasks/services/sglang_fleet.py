"""The fleet of SGLang servers on this machine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.command import AdapterRoom
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout import ADAPTER, HF
from nbrl.tasks.learner.settings import LoraSettings
from nbrl.tasks.model_folder.check import linear_layers
from nbrl.tasks.services.fleet import EngineAddress


class SglangFleet:
    """An EngineFleet. `room` is the space that the engines reserve for adapters; without it complete models are published."""

    def __init__(self, servers: list[EngineServer], clients: list[EngineClient], initial: Path, room: AdapterRoom | None) -> None:
        self._servers, self._clients, self._initial, self._room = servers, clients, initial, room

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
    ) -> "SglangFleet":
        """Start `settings.count` engines that serve `checkpoint`, or `initial` if it is None, as `version`.

        The stack ends them. Raises EngineError if one does not start.
        """
        model = initial if room or checkpoint is None else checkpoint / HF
        servers: list[EngineServer] = []
        for number in range(settings.count):
            servers.append(launch(settings, model, logs, index=number, room=room, version=version))
            stack.callback(servers[-1].stop)
        await asyncio.to_thread(wait, servers)
        clients = [server.client() for server in servers]
        for client in clients:
            stack.push_async_callback(client.close)
        fleet = cls(servers, clients, initial, room)
        if room and checkpoint is not None:
            await fleet.publish(checkpoint, version)
        return fleet

    @property
    def addresses(self) -> list[EngineAddress]:
        return [EngineAddress(client.url, client.adapter) for client in self._clients]

    async def publish(self, checkpoint: Path | None, version: str) -> None:
        for client in self._clients:
            await self._publish(client, checkpoint, version)

    async def serve(self, version: str, bring: Callable[[], Awaitable[Path | None]]) -> None:
        others = [client for client in self._clients if await client.weights_version() != version]
        if not others:
            return
        checkpoint = await bring()
        for client in others:
            await self._publish(client, checkpoint, version)

    async def prove(self, version: str, token_ids: Sequence[int], logprobs: Sequence[float]) -> float:
        worst = 0.0
        for client in self._clients:
            served = await client.weights_version()
            if served != version:
                raise BrokenInvariantError(f"engine {client.url} serves weights {served!r} after publishing {version!r}")
            scored = await client.score(token_ids)
            worst = max([worst, *(abs(a - b) for a, b in zip(scored, logprobs, strict=True))])
        return worst

    def check_health(self) -> None:
        for server in self._servers:
            if not server.alive():
                raise EngineError(f"the engine at {server.url} ended: {server.last_words()}")

    async def _publish(self, client: EngineClient, checkpoint: Path | None, version: str) -> None:
        if self._room:
            await client.publish_adapter(checkpoint / ADAPTER if checkpoint else None, version)
        else:
            await client.publish(checkpoint / HF if checkpoint else self._initial, version)


def adapter_room(lora: LoraSettings | None, initial: Path) -> AdapterRoom | None:
    """The space that the engines of a training run reserve for adapters; None if complete weights are published."""
    if lora is None or lora.publish == "merged":
        return None
    return AdapterRoom(lora.rank, lora.target_modules or tuple(sorted(linear_layers(str(initial)))))
