"""One engine of a fleet."""

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from nbrl.infra.engine.actor import EnginePlace, EnginePlan, start_actors
from nbrl.infra.engine.client import EngineClient, adapter_name
from nbrl.infra.engine.command import Member
from nbrl.infra.errors import EngineError, InfraError, PlaceError
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.ray_data import raised_in_task
from nbrl.tasks.layout.checkpoints import ADAPTER, HF
from nbrl.tasks.services.concurrently import all_of

T = TypeVar("T")
ANSWER_S = 5.0  # an actor whose machine lives answers at once
SLOW_S = 20.0  # with more to do than it can, an actor may take so long
STOP_S = 20.0
PLACE_S = 120.0  # to find another machine for an engine whose machine is gone


class Served(NamedTuple):
    """The weights that an engine serves: a checkpoint, or the initial model if it is None, and its name."""

    checkpoint: PlacedFolder | None
    version: str

    @property
    def adapter(self) -> str | None:
        """Return the adapter that requests must name where checkpoints are adapters."""
        return None if self.checkpoint is None else adapter_name(self.version)


def adapters_of(served: Sequence[Served]) -> dict[str, PlacedFolder]:
    """Return the adapters among several by name."""
    return {adapter_name(each.version): each.checkpoint for each in served if each.checkpoint is not None}


class Engine(Protocol):
    """An engine on any machine. Raises EngineError for what it cannot do."""

    name: str
    client: EngineClient

    async def start(self, served: Sequence[Served]) -> None:
        """Start it with these weights, the last of which names what it serves, in place of what is left of it; returns when it
        serves, and `client` asks it. Only of adapters there may be several.
        """
        ...

    async def path(self, weights: Served) -> Path | None:
        """Return the folder of a model on the engine's machine, or of an adapter; None for the initial model without one."""
        ...

    async def ending(self) -> str:
        """Return how it ended; empty while it lives, or if that is unknown."""
        ...

    async def log(self) -> str:
        """Return where its log is."""
        ...

    async def stop(self) -> None: ...


class RemoteEngine:
    """An Engine in an actor of Ray, or one on each of its machines. Where an actor is gone, or does not answer, it gets new ones
    in its place, which Ray moves from a machine that is dead.

    `initial` is the model; with space for adapters it stays, and checkpoints are adapters.
    """

    def __init__(self, plan: EnginePlan, number: int, initial: PlacedFolder, place: EnginePlace) -> None:
        self._plan, self._number, self._initial, self._place = plan, number, initial, place
        self.name = f"engine {number}"
        self._actors, self._stands = start_actors(plan, number, place), False
        self.client = EngineClient("http://not-started")
        self._port: int | None = (
            None  # from the first start on; the next actor takes it, so that requests that wait find it there
        )

    async def start(self, served: Sequence[Served]) -> None:
        weights = served[-1]
        again = self._port is not None
        if again and await self._gone():
            self._actors.kill()
            self._actors, self._stands = start_actors(self._plan, self._number, self._place, self._port), False
        adapters = adapters_of(served) if self._plan.room else {}
        asked = (*self._model(weights), weights.version, adapters, ADAPTER)
        try:
            await self.placed(PLACE_S if again else None)
            for folder, part in (self._model(weights), *((adapter, ADAPTER) for adapter in adapters.values())):
                await self._path(folder, part)  # so that no member waits for another one's download
            members = await self._members()
            pairs = zip(self._actors.members, members, strict=True)
            url, vocabulary = (await all_of(self._asked(actor.start.remote(*asked, member)) for actor, member in pairs))[0]
        except EngineError:
            await self._stop()  # of several members, those that came up, or wait for one that did not
            raise
        self._port = int(url.rpartition(":")[2])
        if url != self.client.url:
            await self.client.close()
            self.client = EngineClient(url, self._plan.settings.request_timeout_s, vocabulary, self._plan.key)

    async def path(self, weights: Served) -> Path | None:
        if self._plan.room and weights.checkpoint is None:
            return None
        folder, part = (weights.checkpoint, ADAPTER) if weights.checkpoint and self._plan.room else self._model(weights)
        return await self._path(folder, part)

    async def _path(self, folder: PlacedFolder, part: str) -> Path:
        """Return the subfolder `part` of a folder on every machine of the engine."""
        paths = set(await all_of(self._asked(actor.path.remote(folder, part)) for actor in self._actors.members))
        if len(paths) > 1:  # the first member serves, the others follow
            where = ", ".join(sorted(map(str, paths)))
            raise EngineError(f"{self.name} must find its weights at one path on all of its machines: set nodes.cache ({where})")
        return paths.pop()

    def _model(self, weights: Served) -> tuple[PlacedFolder, str]:
        """Return where the model is that the engine loads: with space for adapters always the initial one."""
        return (self._initial, "") if self._plan.room or weights.checkpoint is None else (weights.checkpoint, HF)

    async def ending(self) -> str:
        endings = await asyncio.gather(*(self._ending(actor) for actor in self._actors.members))
        return next((each for each in endings if each), "")

    async def _ending(self, actor: Any) -> str:
        try:
            return await asyncio.wait_for(self._asked(actor.ending.remote()), ANSWER_S)
        except TimeoutError:
            return ""
        except EngineError as error:
            return "" if isinstance(error.__cause__, ActorUnavailableError) else str(error)

    async def log(self) -> str:
        try:
            return ", ".join(await asyncio.wait_for(self._logs(), ANSWER_S))
        except (TimeoutError, EngineError):
            return f"{self._plan.logs} on its machine"

    async def _logs(self) -> list[str]:
        return await all_of(self._asked(actor.log.remote()) for actor in self._actors.members)

    async def stop(self) -> None:
        """Stop the engine. A machine that does not answer is skipped: its engine ends with the actor."""
        if self._stands:
            await self._stop()
        self._actors.kill()
        await self.client.close()

    async def _stop(self) -> None:
        """Stop the engine where it can be reached; its actors stay."""
        stopping = [asyncio.wait_for(self._asked(actor.stop.remote()), STOP_S) for actor in self._actors.members]
        for error in await asyncio.gather(*stopping, return_exceptions=True):
            if isinstance(error, BaseException) and not isinstance(error, TimeoutError | InfraError):
                raise error

    async def placed(self, limit_s: float | None = None) -> None:
        """Wait until every actor has a machine. Raises PlaceError after `limit_s` seconds."""
        try:
            await asyncio.wait_for(self._logs(), limit_s)
            self._stands = True
        except TimeoutError as error:
            where = f"no machine of the cluster has room for it, see engine.resources, GPUs and `ray status` ({limit_s:g} s)"
            raise PlaceError(f"{self.name} cannot be placed: {where}") from error

    async def _members(self) -> list[Member | None]:
        """Return what each actor is of the engine that starts next: None if there is only one."""
        count = self._plan.settings.machines
        if count == 1:
            return [None]
        meeting = await self._asked(self._actors.first.meeting.remote())
        return [Member(number, meeting) for number in range(count)]

    async def _gone(self) -> bool:
        """Return whether an actor is gone or does not answer, so that the engine cannot be started again in its place."""
        try:
            await asyncio.wait_for(self._logs(), SLOW_S)
        except (TimeoutError, EngineError):
            return True
        return False

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except RayTaskError as error:
            cause = raised_in_task(error)
            raise cause if isinstance(cause, InfraError) else EngineError(f"{self.name}: {cause}") from error
        except RayError as error:
            ended = "does not answer" if isinstance(error, ActorUnavailableError) else "ended"
            raise EngineError(f"the actor of {self.name} {ended}: {' '.join(str(error).split())[:300]}") from error
