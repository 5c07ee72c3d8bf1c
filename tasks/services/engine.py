"""One engine of a fleet."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import ray
from ray.exceptions import RayActorError, RayTaskError

from nbrl.infra.engine.actor import EnginePlan, start_actor
from nbrl.infra.engine.client import ADAPTER as POLICY
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.errors import EngineError, InfraError
from nbrl.infra.placed_folder import PlacedFolder
from nbrl.infra.ray_data import raised_in_task
from nbrl.tasks.layout import ADAPTER, HF

T = TypeVar("T")
ANSWER_S = 5.0  # an actor whose machine lives answers at once
SLOW_S = 20.0  # with more to do than it can, an actor may take so long
STOP_S = 20.0


class Served(NamedTuple):
    """What an engine serves: a checkpoint, or the initial model if it is None, and its name."""

    checkpoint: PlacedFolder | None
    version: str


class Engine(Protocol):
    """An engine, wherever it runs. What cannot be done raises EngineError."""

    name: str
    client: EngineClient

    async def start(self, weights: Served) -> None:
        """Start it with these weights, in place of what is left of it; returns when it serves, and `client` asks it."""
        ...

    async def path(self, weights: Served) -> Path | None:
        """The folder of a model on the engine's machine, or of an adapter; None for the initial model without one."""
        ...

    async def ending(self) -> str:
        """How it ended; empty while it lives, or nobody can say."""
        ...

    async def log(self) -> str:
        """Where its log is."""
        ...

    async def stop(self) -> None: ...


class RemoteEngine:
    """An Engine in an actor of Ray. One whose machine is gone, or does not answer, gets a new actor, perhaps elsewhere.

    `initial` is the model; with space for adapters it stays, and checkpoints are adapters.
    """

    def __init__(self, plan: EnginePlan, number: int, initial: PlacedFolder) -> None:
        self._plan, self._number, self._initial = plan, number, initial
        self.name = f"engine {number}"
        self._actor: Any = start_actor(plan, number)
        self.client = EngineClient("http://not-started")
        self._port: int | None = (
            None  # from the first start on; the next actor takes it, so that requests that wait find it there
        )

    async def start(self, weights: Served) -> None:
        if self._port is not None and await self._gone():
            ray.kill(self._actor)
            self._actor = start_actor(self._plan, self._number, self._port)
        adapter = weights.checkpoint if self._plan.room else None
        model, part = self._model(weights)
        url, vocabulary = await self._asked(self._actor.start.remote(model, part, weights.version, adapter, ADAPTER))
        self._port = int(url.rpartition(":")[2])
        if url != self.client.url:
            await self.client.close()
            self.client = EngineClient(url, self._plan.settings.request_timeout_s, vocabulary, self._plan.key)
        self.client.adapter = POLICY if adapter else None

    async def path(self, weights: Served) -> Path | None:
        if not self._plan.room:
            return await self._asked(self._actor.path.remote(*self._model(weights)))
        return await self._asked(self._actor.path.remote(weights.checkpoint, ADAPTER)) if weights.checkpoint else None

    def _model(self, weights: Served) -> tuple[PlacedFolder, str]:
        """Where the model is that the engine loads: with space for adapters always the initial one."""
        return (self._initial, "") if self._plan.room or weights.checkpoint is None else (weights.checkpoint, HF)

    async def ending(self) -> str:
        try:
            return await asyncio.wait_for(self._asked(self._actor.ending.remote()), ANSWER_S)
        except TimeoutError:
            return ""
        except EngineError as error:
            return str(error)

    async def log(self) -> str:
        try:
            return await asyncio.wait_for(self._asked(self._actor.log.remote()), ANSWER_S)
        except (TimeoutError, EngineError):
            return f"{self._plan.logs} on its machine"

    async def stop(self) -> None:
        """A machine that does not answer is left to itself: its engine ends with the actor."""
        with suppress(TimeoutError, InfraError):
            await asyncio.wait_for(self._asked(self._actor.stop.remote()), STOP_S)
        ray.kill(self._actor)
        await self.client.close()

    async def _gone(self) -> bool:
        """Whether the actor is gone or does not answer, so that the engine cannot be started again in its place."""
        try:
            await asyncio.wait_for(self._asked(self._actor.log.remote()), SLOW_S)
        except (TimeoutError, EngineError):
            return True
        return False

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except RayTaskError as error:
            cause = raised_in_task(error)
            raise cause if isinstance(cause, InfraError) else EngineError(f"{self.name}: {cause}") from error
        except RayActorError as error:
            raise EngineError(f"the actor of {self.name} ended: {' '.join(str(error).split())[:300]}") from error
