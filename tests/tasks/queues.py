"""A queue without Ray, and rounds that one runner plays in this process."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pyarrow as pa

from nbrl.infra.parts import joined
from nbrl.infra.storage import Storage
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan
from nbrl.tasks.rollout.runner import Runner
from nbrl.tasks.rollout.work_queue import WorkQueue

ENGINES = [EngineAddress("double://")]


class Call:
    """A method as that of an actor."""

    def __init__(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._method = method

    def remote(self, *arguments: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._method(*arguments))
        return asyncio.ensure_future(self._method(*arguments))


class LocalQueue:
    def __init__(self) -> None:
        self.queue = WorkQueue()
        self.register_runner, self.take, self.finish = (
            Call(self.queue.register_runner),
            Call(self.queue.take),
            Call(self.queue.finish),
        )
        self.begin = Call(self.queue.begin)


async def index_by(
    runner: Runner, queue: LocalQueue, rows: Sequence[dict[str, Any]], plan: RoundPlan, engines: Sequence[EngineAddress] = ENGINES
) -> pa.Table:
    """The index of a round that a runner plays alone."""
    await queue.queue.open("round", len(rows), engines, False)
    await queue.queue.add("round", rows)
    await runner.run("round", plan)
    return await queue.queue.index("round", [row["id"] for row in rows])


async def played_by(
    storage: Storage, runner: Runner, queue: LocalQueue, rows: Sequence[dict[str, Any]], plan: RoundPlan
) -> pa.Table:
    """The trajectories of such a round."""
    return joined(await index_by(runner, queue, rows, plan), storage.read_table)
