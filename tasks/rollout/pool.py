"""The pool of runners, the queue that assigns their work, and Ray Data over them."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayActorError, RayTaskError

from nbrl.agent.errors import AgentError
from nbrl.infra.errors import InfraError
from nbrl.infra.placement import for_sandboxes
from nbrl.infra.ray_data import among, here, map_tables, raised_in_task
from nbrl.sandbox.errors import SandboxError
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.rollout.calls import answer, answers_in_time, first_line, queue_answer
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.pooled_runner import PooledRunner
from nbrl.tasks.rollout.supervisor import RunnerSupervisor
from nbrl.tasks.rollout.work_queue import WorkQueue

CPU_SHARE = 0.01  # runners share the cores with engines and ranks; Ray spreads only what asks for something
REPORT_S, STOP_S = 1.0, 10.0


def first_map(table: pa.Table) -> pa.Table:
    """Return the table. Ray Data's first map starts two processes, which takes two seconds: this does it before a round."""
    return table


def run_rows(rows: pa.Table, queue: Any, name: str) -> pa.Table:
    """Put the rows of a round into the queue, and return the index of their trajectories once runners have finished it.

    One task of Ray Data has all of them: of several, each would wait for the whole round. Raises RayActorError when the queue is
    gone.
    """
    ray.get(queue.add.remote(name, rows.to_pylist()))
    ray.get(queue.completed.remote(name))
    index: pa.Table = ray.get(queue.index.remote(name, rows["id"].to_pylist()))
    return index


class PooledStream:
    """The rows of a stream at the queue of a pool. Its `tasks` end only with an error."""

    def __init__(
        self, queue: Any, name: str, engines: Callable[[], Sequence[EngineAddress]], tasks: Sequence[asyncio.Task[Any]]
    ) -> None:
        self._queue, self._name, self._engines, self.tasks = queue, name, engines, tasks

    async def add(self, rows: list[dict[str, Any]]) -> None:
        """Let runners have further rows, for the engines where they are now."""
        await queue_answer(self._queue.move.remote(list(self._engines())))
        await queue_answer(self._queue.add.remote(self._name, rows))

    async def pause(self) -> None:
        """Let no further trajectory begin, and return when those that have begun are finished."""
        while not await queue_answer(self._queue.pause.remote(self._name)):
            pass

    async def resume(self) -> None:
        """Let trajectories begin again."""
        await queue_answer(self._queue.resume.remote(self._name))


class RunnerPool:
    """Runners that live as long as the run. Ray restarts one that dies; other runners run its unfinished trajectories."""

    def __init__(self, plan: RunnerPlan) -> None:
        runner: Any = ray.remote(PooledRunner)
        queue: Any = ray.remote(WorkQueue)
        placed = runner.options(
            num_cpus=CPU_SHARE,
            resources=plan.rollout.resources,
            label_selector={} if plan.rollout.resources else among(for_sandboxes(ray.nodes(), {})),
            scheduling_strategy="SPREAD",
            max_restarts=-1,
        )
        name, calls = f"queue-{uuid.uuid4().hex}", 4 * plan.rollout.runners + 100
        self._queue = queue.options(name=name, num_cpus=0, label_selector=here(), max_concurrency=calls).remote()
        self._runners = [placed.remote(plan, number, name) for number in range(plan.rollout.runners)]
        self._supervisor = RunnerSupervisor(self._runners, self._queue, plan.storage)
        self._maps: list[asyncio.Future[pa.Table]] = []  # maps that have not ended, awaited or abandoned
        self._threads = ThreadPoolExecutor()  # of the maps: in threads that others need too, several rollouts would delay those
        self._reported = [0] * len(self._runners)  # how many sentences of each

    async def start(self, say: Callable[[str], None]) -> None:
        """Start all runners; `say` is called about long work. Raises AgentError, SandboxError or InfraError."""
        warm = self._mapped([pa.table({"runner": [0]})], first_map, ())
        starts = asyncio.gather(asyncio.shield(warm), *(answer(runner.start.remote()) for runner in self._runners))
        try:
            while not starts.done():
                await asyncio.wait([starts], timeout=REPORT_S)
                await self._report(say)
            await starts
        except RayTaskError as error:
            if isinstance(error.cause, AgentError | SandboxError | InfraError):
                raise error.cause from error  # Ray's own text is the runner's traceback
            raise
        except RayActorError as error:
            raise RolloutError(f"a runner ended while it started: {first_line(error)}") from error
        finally:
            starts.cancel()
            await asyncio.gather(starts, return_exceptions=True)

    async def _report(self, say: Callable[[str], None]) -> None:
        """Say what runners have said since the last time."""
        for number, said in (await answers_in_time([runner.said.remote() for runner in self._runners])).items():
            for sentence in said[self._reported[number] :]:
                say(sentence)
            self._reported[number] = len(said)

    async def stop(self) -> None:
        """Stop all runners. One that does not stop in time is killed; its zygote ends with it.

        Abandoned maps then fail, and are awaited: if Ray is shut down during a map, it ends the whole process.
        """
        stops = [asyncio.ensure_future(answer(runner.stop.remote())) for runner in self._runners]
        await asyncio.wait(stops, timeout=STOP_S)
        for actor in (*self._runners, self._queue):
            ray.kill(actor)
        if self._maps:
            await asyncio.wait(self._maps, timeout=STOP_S)
        self._threads.shutdown(wait=False)

    async def run(
        self,
        rows: list[dict[str, Any]],
        engines: Callable[[], Sequence[EngineAddress]],
        plan: RoundPlan,
        progress: Callable[[int], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> pa.Table:
        """Run all rows; return the index of their trajectories, in the order of the rows, sampled by `engines`.

        What finishes is kept in the plan's folder `chunks`; what is there or in its `earlier` folders is not run again.
        `progress` is called with the number of finished ones; `healthy` is called often, and an exception of it ends the work;
        `say` is called for runners that fell silent or were started again, and for damaged chunks.
        """
        name, left = uuid.uuid4().hex, await self._supervisor.left(plan)
        await queue_answer(self._queue.open.remote(name, len(rows), list(engines()), bool(left)))
        work = self._mapped([pa.Table.from_pylist(rows)], run_rows, (self._queue, name))
        damaged = await self._supervisor.supervise(name, plan, work, engines, progress, healthy, say)
        try:
            index = work.result()
        except ray.exceptions.RayError as error:
            raise RolloutError(f"the runners failed: {first_line(raised_in_task(error))}") from error
        for chunk in sorted(damaged):
            say(f"{chunk} is damaged: its trajectories were run again")
        await self._report(say)
        return index

    @asynccontextmanager
    async def stream(
        self,
        engines: Callable[[], Sequence[EngineAddress]],
        plan: RoundPlan,
        found: Callable[[pa.Table], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> AsyncIterator[PooledStream]:
        """Run rows as they come, until the end of the body; `found` is called with the index of what has finished. What is in the
        plan's folders is not looked for. Else it is as `run`.
        """
        name = uuid.uuid4().hex
        await queue_answer(self._queue.open.remote(name, None, list(engines()), False, plan.mixed))

        async def notice() -> None:
            while True:
                index: pa.Table = await queue_answer(self._queue.news.remote(name))
                if len(index):
                    found(index)

        forever = asyncio.get_running_loop().create_future()
        supervising = self._supervisor.supervise(name, plan, forever, engines, lambda done: None, healthy, say)
        tasks = [asyncio.create_task(supervising), asyncio.create_task(notice())]
        try:
            yield PooledStream(self._queue, name, engines, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def map_tables(self, tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
        """Return `function(table, *arguments)` of every table, in one, by Ray Data."""
        return map_tables(tables, function, arguments)

    def _mapped(
        self, tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]
    ) -> asyncio.Future[pa.Table]:
        """Begin a map, which `stop` awaits."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, map_tables, tables, function, arguments)
        work.add_done_callback(_retrieve_error)
        self._maps = [*(task for task in self._maps if not task.done()), work]
        return work


def _retrieve_error(work: asyncio.Future[pa.Table]) -> None:
    """Retrieve the error of an abandoned task, so that asyncio does not print it as never retrieved."""
    if not work.cancelled():
        work.exception()
