"""Engines of a fleet without Ray: one without a process, and a real one in this process's care."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.command import AdapterRoom, Door
from nbrl.infra.engine.host import EngineHost
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.infra.node_cache import NodeSettings, PlacedFolder
from nbrl.tasks.layout.checkpoints import ADAPTER, HF
from nbrl.tasks.services.engine import Served, adapters_of


class DoubleEngine:
    """An Engine without a process. `lives` can be taken away; a start gives it back, or fails if it is to."""

    def __init__(self, client: Any, adapters: bool = False, fails: bool = False) -> None:
        self.name, self.client, self.lives, self.fails = "engine 0", client, True, fails
        self._adapters = adapters
        self.started: list[list[Served]] = []

    async def start(self, served: Sequence[Served]) -> None:
        self.started.append(list(served))
        self.lives = not self.fails
        if self.fails:
            raise EngineError("it ended while starting")

    async def path(self, weights: Served) -> Path | None:
        if weights.checkpoint is None:
            return None if self._adapters else Path("initial")
        return Path(weights.checkpoint.place, ADAPTER if self._adapters else HF)

    async def ending(self) -> str:
        return "" if self.lives else "killed by signal 9"

    async def log(self) -> str:
        return "engine-0.log"

    async def stop(self) -> None:
        self.lives = False


class HereEngine:
    """An Engine of this process: a real SGLang server."""

    def __init__(self, settings: EngineSettings, initial: Path, logs: Path, room: AdapterRoom | None = None) -> None:
        self.name, self._initial, self._room = "engine 0", PlacedFolder(str(initial)), room
        self._door = Door()
        self.host = EngineHost(settings, 0, logs, NodeSettings(), self._door, room)
        self._settings = settings
        self.client = EngineClient("http://not-started")

    async def start(self, served: Sequence[Served]) -> None:
        weights = served[-1]
        model, part = (self._initial, "") if self._room or weights.checkpoint is None else (weights.checkpoint, HF)
        adapters = adapters_of(served) if self._room else {}
        url, vocabulary = await asyncio.to_thread(self.host.start, model, part, weights.version, adapters, ADAPTER)
        if url != self.client.url:
            self.client = EngineClient(url, self._settings.request_timeout_s, vocabulary, self._door.key)

    async def path(self, weights: Served) -> Path | None:
        if self._room:
            return self.host.path(weights.checkpoint, ADAPTER) if weights.checkpoint else None
        return self.host.path(weights.checkpoint, HF) if weights.checkpoint else Path(self._initial.place)

    async def ending(self) -> str:
        return self.host.ending()

    async def log(self) -> str:
        return self.host.log()

    async def stop(self) -> None:
        self.host.stop()
        await self.client.close()
