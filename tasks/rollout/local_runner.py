"""A runner in this process, in place of a pool of them: for so few trajectories that Ray would take longer than they do."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.runner import Runner
from nbrl.tasks.rollout.work_queue import WorkQueue

POLL_S = 0.5


class LocalRunner:
    """One runner and its queue, with the methods of a RunnerPool that nodes call."""

    def __init__(self, plan: RunnerPlan) -> None:
        self._storage, self._queue = plan.storage, WorkQueue()
        self._runner = Runner(plan, 0, self._queue)

    async def start(self, say: Callable[[str], None]) -> None:
        """Start the sandboxes. Raises AgentError, SandboxError or InfraError."""
        try:
            await self._runner.start()
        finally:
            for sentence in await self._runner.said():
                say(sentence)

    async def stop(self) -> None:
        await self._runner.stop()

    async def run(
        self,
        rows: list[dict[str, Any]],
        engines: Callable[[], Sequence[EngineAddress]],
        plan: RoundPlan,
        progress: Callable[[int], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> pa.Table:
        """Run all rows, as RunnerPool.run does."""
        name, ids = uuid.uuid4().hex, [row["id"] for row in rows]
        folders = (*plan.earlier, plan.chunks)
        left = [key for folder in folders for key in await asyncio.to_thread(self._storage.list, folder)]
        await self._queue.open(name, len(rows), list(engines()), bool(left))
        await self._queue.add(name, rows)
        if left:
            index, damaged = await self._runner.find(left, ids)
            await self._queue.settle(name, ids, index)
            for chunk in damaged:
                say(f"{chunk} is damaged: its trajectories are run again")
        work = asyncio.create_task(self._runner.run(name, plan))
        try:
            while not work.done():
                await asyncio.wait([work], timeout=POLL_S)
                healthy()
                progress((await self._queue.look()).finished)
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return await self._queue.index(name, ids)

    def map_tables(self, tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
        """Return `function(table, *arguments)` of every table, in one."""
        return pa.concat_tables([function(table, *arguments) for table in tables])
