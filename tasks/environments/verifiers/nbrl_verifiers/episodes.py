"""The trajectories under way, each with tools and a state of its own."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.session import call_hook

from . import traces
from .errors import TasksetRefusalError
from .scoring import check_scores, prepared, scored
from .slices import UNBOUNDED
from .tasksets import TasksetSource
from .toolsets import ToolsetServer


class _TasksetEpisode:
    """One trajectory, from its task's preparation to its reward."""

    def __init__(self, task: Any, shared: list[ToolsetServer], seed: int) -> None:
        self._task, self._seed, self._shared = task, seed, shared
        self._owners: dict[str, tuple[ToolsetServer, str]] = {}
        self._calls: list[dict[str, Any]] = []
        self._end = asyncio.Event()
        self.trace: Any = None

    async def live(self, ready: "asyncio.Future[list[dict[str, Any]]]") -> None:
        """Say in `ready` which tools there are, and hold their servers until the end.

        In one task, because what they hold may have to be left in the task in which it was entered.
        """
        async with AsyncExitStack() as held:
            try:
                self.trace = await prepared(self._task, self._seed)
                servers = [ToolsetServer(each) for each in self._task.toolsets(self._task.config)]
                for server in servers:
                    await server.open(held, self._task.data)
                ready.set_result(await self._named([*self._shared, *servers]))
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    ready.set_exception(error if isinstance(error, Exception) else RuntimeError(str(error)))
                    return
                raise
            await self._end.wait()

    def end(self) -> None:
        self._end.set()

    async def call(self, step: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name not in self._owners:
            raise TasksetRefusalError(f"there is no tool {name!r}")
        server, own = self._owners[name]
        call = {"id": f"call-{len(self._calls)}", "step": step, "tool": own, "arguments": arguments}
        self._calls.append(call)
        try:
            answer, call["text"] = await server.call(self.trace, own, arguments)
        except TasksetRefusalError as error:
            call["text"] = str(error)
            raise
        finally:
            call.setdefault("text", "")
            traces.add_call(self.trace, call)
        return {"answer": answer, "done": await self._stopped()}

    async def finish(self, steps: list[dict[str, Any] | None], answer: str | None, status: str) -> dict[str, Any]:
        traces.complete(self.trace, self._task, steps, self._calls, answer, status)
        return await scored(self._task, self.trace)

    async def _named(self, servers: list[ToolsetServer]) -> list[dict[str, Any]]:
        """Return all tools, with the names by which they are called: their own, with that of their server where two are alike."""
        offered = [(server, tool) for server in servers for tool in await server.tools()]
        alike = [tool["name"] for _, tool in offered]
        for server, tool in offered:
            own = tool["name"]
            name = own if alike.count(own) == 1 else f"{server.name}_{own}"
            if name in self._owners:
                raise TasksetRefusalError(f"two of its tools are named {name}")
            self._owners[name] = (server, own)
            tool["name"] = name
        return [tool for _, tool in offered]

    async def _stopped(self) -> bool:
        for stop in self._task.hooks("stop"):
            if await call_hook(stop, {vf.Trace: self.trace}):
                self.trace.stop(stop.__name__)
        return bool(self.trace.is_completed)


class TasksetEpisodes:
    """All trajectories under way, by the numbers that the asking side gave them."""

    def __init__(self, source: TasksetSource) -> None:
        self._source = source
        self._episodes: dict[int, _TasksetEpisode] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._shared: dict[str, asyncio.Future[list[ToolsetServer]]] = {}

    async def tried(self, split: str, data: str) -> None:
        """Raises TasksetRefusalError unless a task can be begun and scored here, and all its tools can be set up."""
        await check_scores(self._source.task(split, data))
        await self.start(-1, split, data, 0)
        await self.end(-1)

    async def start(self, number: int, split: str, data: str, seed: int) -> dict[str, Any]:
        """Begin a trajectory; return its tools."""
        episode = _TasksetEpisode(self._source.task(split, data), await self._common(split), seed)
        ready: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._begin(episode.live(ready))
        self._episodes[number] = episode
        try:
            return {"tools": await ready}
        except BaseException:
            del self._episodes[number]
            raise

    async def call(self, number: int, step: int, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool; return its answer, and whether the task has ended."""
        return await self._episodes[number].call(step, tool, json.loads(json.dumps(arguments)))

    async def finish(self, number: int, steps: list[dict[str, Any] | None], answer: str | None, status: str) -> dict[str, Any]:
        """Return reward and metrics."""
        return await self._episodes[number].finish(steps, answer, status)

    async def end(self, number: int) -> None:
        """Forget a trajectory, and end what its tools hold."""
        if (episode := self._episodes.pop(number, None)) is not None:
            episode.end()

    async def _common(self, split: str) -> list[ToolsetServer]:
        """Return the servers that all trajectories share, set up once."""
        if split not in self._shared:
            ready: asyncio.Future[list[ToolsetServer]] = asyncio.get_running_loop().create_future()
            self._shared[split] = ready
            self._begin(self._live(split, ready), UNBOUNDED)
        return await asyncio.shield(self._shared[split])

    async def _live(self, split: str, ready: "asyncio.Future[list[ToolsetServer]]") -> None:
        async with AsyncExitStack() as held:
            try:
                servers = [ToolsetServer(each) for each in self._source.shared_toolsets(split)]
                for server in servers:
                    await server.open(held, None)
            except Exception as error:
                del self._shared[split]  # the next trajectory tries again
                ready.set_exception(error)
                return
            ready.set_result(servers)
            await asyncio.Event().wait()

    def _begin(self, work: Any, name: str = "trajectory") -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
