"""The pool of runners, the queue that assigns their work, and Ray Data over them."""

import asyncio
import time
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
from nbrl.infra.process.shared import Budget
from nbrl.infra.ray_data import among, here, map_tables, raised_in_task
from nbrl.infra.storage import Storage
from nbrl.sandbox.errors import SandboxError
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.pooled_runner import PooledRunner
from nbrl.tasks.rollout.work_queue import QueueStatus, WorkQueue

AGAIN_S = 1.0  # between two attempts to reach a runner that is being started again
POLL_S = 1.0
CPU_SHARE = 0.01  # runners share the cores with engines and ranks; Ray spreads only what asks for something
RESTARTS, WINDOW_S = 5, 600.0  # of all runners together, and one more for each runner but the first
GONE_S = 300.0  # without a sign of any runner, or of the queue, the rollout ends
STOP_S = 10.0
ANSWER_S = 2.0
FIND_S = 600.0  # a runner may take so long to look through chunks


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
        await _taken(self._queue.move.remote(list(self._engines())))
        await _taken(self._queue.add.remote(self._name, rows))

    async def pause(self) -> None:
        """Let no further trajectory begin, and return when those that have begun are finished."""
        while not await _taken(self._queue.pause.remote(self._name)):
            pass

    async def resume(self) -> None:
        """Let trajectories begin again."""
        await _taken(self._queue.resume.remote(self._name))


class RunnerPool:
    """Runners that live as long as the run. Ray restarts one that dies; other runners run its unfinished trajectories.

    Of too many restarts in a short time the rollout ends.
    """

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
        self._storage: Storage = plan.storage
        name, calls = f"queue-{uuid.uuid4().hex}", 4 * plan.rollout.runners + 100
        self._queue = queue.options(name=name, num_cpus=0, label_selector=here(), max_concurrency=calls).remote()
        self._runners = [placed.remote(plan, number, name) for number in range(plan.rollout.runners)]
        self._budget = Budget(RESTARTS + plan.rollout.runners - 1, WINDOW_S)
        self._maps: list[asyncio.Future[pa.Table]] = []  # maps that have not ended, awaited or abandoned
        self._threads = ThreadPoolExecutor()  # of the maps: in threads that others need too, several rollouts would delay those
        self._lived = time.monotonic()
        self._reported = [0] * len(self._runners)  # how many sentences of each

    async def start(self, say: Callable[[str], None]) -> None:
        """Start all runners; `say` is called about long work. Raises AgentError, SandboxError or InfraError."""
        warm = self._mapped([pa.table({"runner": [0]})], first_map, ())
        starts = asyncio.gather(asyncio.shield(warm), *(_await(runner.start.remote()) for runner in self._runners))
        try:
            while not starts.done():
                await asyncio.wait([starts], timeout=POLL_S)
                await self._report(say)
            await starts
        except RayTaskError as error:
            if isinstance(error.cause, AgentError | SandboxError | InfraError):
                raise error.cause from error  # Ray's own text is the runner's traceback
            raise
        except RayActorError as error:
            raise RolloutError(f"a runner ended while it started: {_line(error)}") from error
        finally:
            starts.cancel()
            await asyncio.gather(starts, return_exceptions=True)

    async def _report(self, say: Callable[[str], None]) -> None:
        """Say what runners have said since the last time."""
        for number, said in (await _answers([runner.said.remote() for runner in self._runners])).items():
            for sentence in said[self._reported[number] :]:
                say(sentence)
            self._reported[number] = len(said)

    async def stop(self) -> None:
        """Stop all runners. One that does not stop in time is killed; its zygote ends with it.

        Abandoned maps then fail, and are awaited: if Ray is shut down during a map, it ends the whole process.
        """
        stops = [asyncio.ensure_future(_await(runner.stop.remote())) for runner in self._runners]
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
        name, where = uuid.uuid4().hex, list(engines())
        left = await self._left(plan)
        await _taken(self._queue.open.remote(name, len(rows), where, bool(left)))
        work = self._mapped([pa.Table.from_pylist(rows)], run_rows, (self._queue, name))
        damaged = await self._tended(name, plan, work, where, engines, progress, healthy, say)
        try:
            index = work.result()
        except ray.exceptions.RayError as error:
            raise RolloutError(f"the runners failed: {_line(raised_in_task(error))}") from error
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
        name, where = uuid.uuid4().hex, list(engines())
        await _taken(self._queue.open.remote(name, None, where, False))

        async def notice() -> None:
            while True:
                news = asyncio.ensure_future(_await(self._queue.news.remote(name)))
                try:
                    index: pa.Table = await asyncio.wait_for(news, GONE_S)
                except (TimeoutError, RayActorError) as error:
                    raise RolloutError(f"the queue of rows for runners ended: {_line(error) or 'it does not answer'}") from error
                if len(index):
                    found(index)

        forever = asyncio.get_running_loop().create_future()
        tending = self._tended(name, plan, forever, where, engines, lambda done: None, healthy, say)
        tasks = [asyncio.create_task(tending), asyncio.create_task(notice())]
        try:
            yield PooledStream(self._queue, name, engines, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tended(
        self,
        name: str,
        plan: RoundPlan,
        work: asyncio.Future[Any],
        where: Sequence[EngineAddress],
        engines: Callable[[], Sequence[EngineAddress]],
        progress: Callable[[int], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> set[str]:
        """Keep runners at a round until the work is done: start them again, move them to engines, look for doubtful rows. Returns
        the addresses of damaged chunks.
        """
        running = asyncio.gather(*(_keep_running(runner, name, plan) for runner in self._runners))
        settling: asyncio.Task[set[str]] | None = None
        damaged = set[str]()
        self._lived = time.monotonic()
        try:
            while not work.done():
                await asyncio.wait([work, running], timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
                healthy()
                if (now := list(engines())) != where:
                    where = now
                    await _taken(self._queue.move.remote(where))
                seen = (await _answers([self._queue.look.remote()])).get(0)
                self._check(seen, say)
                if seen is not None:
                    progress(seen.finished)
                    if settling is None and seen.doubtful and seen.living:
                        settling = asyncio.create_task(self._settle(name, plan, seen))
                if settling is not None and settling.done():
                    done, settling = settling, None
                    damaged |= done.result()
        except BaseException:
            self._queue.open.remote("", 0, [], False)  # runners go on with nothing
            raise
        finally:
            running.cancel()
            if settling is not None:
                settling.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return damaged

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

    async def _left(self, plan: RoundPlan) -> list[str]:
        """Return keys of the chunks that are there."""
        folders = (*plan.earlier, plan.chunks)
        return [key for folder in folders for key in await asyncio.to_thread(self._storage.list, folder)]

    async def _settle(self, name: str, plan: RoundPlan, seen: QueueStatus) -> set[str]:
        """Let a runner look for doubtful rows in the chunks that were not reported; return the damaged ones.

        Without a runner that can, the rows stay doubtful until the next look.
        """
        keys = [key for key in await self._left(plan) if key not in seen.known]
        for number in seen.living:
            finding = _await(self._runners[number].find.remote(keys, seen.doubtful))
            try:
                index, damaged = await asyncio.wait_for(finding, FIND_S)
            except (TimeoutError, RayActorError):
                continue
            await _taken(self._queue.settle.remote(name, seen.doubtful, index))
            return set(damaged)
        return set()

    def _check(self, seen: QueueStatus | None, say: Callable[[str], None]) -> None:
        """Raises RolloutError if too many runners were started again, or neither one nor the queue has given a sign for long."""
        for number in seen.silent if seen else ():
            say(f"runner {number} gives no sign; others run what it had not finished")
        for _ in range(seen.restarts if seen else 0):
            if not self._budget.spend():
                raise RolloutError(
                    f"runners ended more often than {self._budget}: does this machine lack memory? The logs of Ray say more"
                )
            say("a runner ended and was started again; its finished trajectories are kept")
        now = time.monotonic()
        if seen and seen.living:
            self._lived = now
        elif now - self._lived > GONE_S:
            raise RolloutError(f"no runner has given a sign for {GONE_S:g} s; `ray status` says what is left of the cluster")


async def _keep_running(runner: Any, name: str, plan: RoundPlan) -> None:
    """Call a runner's `run` for ever, again after a restart. Raises what it raises."""
    while True:
        try:
            await runner.run.remote(name, plan)
        except RayTaskError as error:
            raise raised_in_task(error) from error
        except RayActorError:  # Ray starts it again
            pass
        await asyncio.sleep(AGAIN_S)


async def _taken(reference: Any) -> Any:
    """Return what the queue answers to a message."""
    try:
        return await asyncio.wait_for(_await(reference), GONE_S)
    except (TimeoutError, RayActorError) as error:
        raise RolloutError(f"the queue of rows for runners ended: {_line(error) or 'it does not answer'}") from error


async def _answers(references: list[Any]) -> dict[int, Any]:
    """Return the answers of actors by number, without those that do not come in time or are errors."""
    tasks = [asyncio.ensure_future(_await(reference)) for reference in references]
    await asyncio.wait(tasks, timeout=ANSWER_S)
    answers = {}
    for number, answer in enumerate(tasks):
        if answer.done() and answer.exception() is None:
            answers[number] = answer.result()
        answer.cancel()
    return answers


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _retrieve_error(work: asyncio.Future[pa.Table]) -> None:
    """Retrieve the error of an abandoned task, so that asyncio does not print it as never retrieved."""
    if not work.cancelled():
        work.exception()


async def _await(reference: Any) -> Any:
    return await reference
