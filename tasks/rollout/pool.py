"""The pool of runners, and Ray Data over it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayTaskError

from nbrl.agent.errors import AgentError
from nbrl.agent.policy import Sampling
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.ray_data import map_tables
from nbrl.sandbox.errors import SandboxError
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.rollout.runner import RolloutBatch, Runner, RunnerPlan

POLL_S = 0.25
RESTARTS = 3
STOP_S = 10.0
ANSWER_S = 2.0


def run_on_runner(
    rows: pa.Table,
    runners: list[Any],
    engines: Sequence[tuple[str, str | None]],
    unfinished: str,
    earlier: tuple[str, ...],
    sampling: Sampling,
    engine: EngineSettings,
) -> pa.Table:
    """The function that Ray Data maps: from the rows of one runner to their trajectories."""
    number = rows["runner"][0].as_py()
    url, adapter = engines[number % len(engines)]
    batch = RolloutBatch(rows.drop_columns(["runner"]).to_pylist(), url, adapter, unfinished, earlier, sampling, engine)
    return ray.get(runners[number].run.remote(batch))


class RunnerPool:
    """Runners that live as long as the run. Ray restarts one that dies; its unfinished trajectories are run again."""

    def __init__(self, plan: RunnerPlan) -> None:
        actor: Any = ray.remote(Runner)
        remote = actor.options(num_cpus=0, max_restarts=RESTARTS, max_task_retries=RESTARTS)
        self._runners = [remote.remote(plan) for _ in range(plan.rollout.runners)]
        self._maps: list[asyncio.Task[pa.Table]] = []  # maps that have not ended, awaited or abandoned

    async def start(self) -> None:
        """Start all runners. Raises the AgentError or SandboxError of a runner that cannot start."""
        try:
            await asyncio.gather(*(runner.start.remote() for runner in self._runners))
        except RayTaskError as error:
            if isinstance(error.cause, AgentError | SandboxError):
                raise error.cause from error  # Ray's own text is the runner's traceback
            raise

    async def stop(self) -> None:
        """Stop all runners. One that does not stop in time is killed; its zygote ends with it.

        Abandoned maps then fail, and are awaited: if Ray is shut down during a map, it ends the whole process.
        """
        stops = [asyncio.ensure_future(_await(runner.stop.remote())) for runner in self._runners]
        await asyncio.wait(stops, timeout=STOP_S)
        for runner in self._runners:
            ray.kill(runner)
        if self._maps:
            await asyncio.wait(self._maps, timeout=STOP_S)

    async def run(
        self,
        rows: list[dict[str, Any]],
        engines: Sequence[tuple[str, str | None]],
        unfinished: str,
        earlier: tuple[str, ...],
        sampling: Sampling,
        engine: EngineSettings,
        progress: Callable[[int], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> pa.Table:
        """Return the trajectories of all rows, sampled by `engines`, each given as its address and the adapter to name there.

        What finishes is kept in the folder `unfinished`; what is there or in the `earlier` folders is not run again.
        `progress` is called with the number of finished ones; `healthy` is called often, and an exception of it ends
        the work; `say` hears what was found damaged.
        """
        count = len(self._runners)
        shares = [pa.Table.from_pylist([{**row, "runner": n} for row in rows[n::count]]) for n in range(min(count, len(rows)))]
        before = sum(await self._finished())
        finished = before
        arguments = (self._runners, engines, unfinished, earlier, sampling, engine)
        work = asyncio.create_task(asyncio.to_thread(map_tables, shares, run_on_runner, arguments))
        work.add_done_callback(_retrieve_error)
        self._maps = [*(task for task in self._maps if not task.done()), work]
        while not work.done():
            await asyncio.wait([work], timeout=POLL_S)
            healthy()
            finished = max(finished, sum(await self._finished()))
            progress(finished - before)
        try:
            table = work.result()
        except ray.exceptions.RayError as error:
            raise RolloutError(f"the runners failed beyond their retry budget: {error}") from error
        for chunk in await self._damaged():
            say(f"{chunk} is damaged: its trajectories were run again")
        return table

    async def _damaged(self) -> list[str]:
        """Damaged chunks, each once: every runner reads all of them."""
        found = await asyncio.gather(*(_await(runner.damaged.remote()) for runner in self._runners))
        return sorted({chunk for chunks in found for chunk in chunks})

    async def _finished(self) -> list[int]:
        """Finished trajectories per runner, or [0] if a runner is busy or being restarted: a count is not worth waiting for."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return list(await asyncio.gather(*(_await(runner.finished.remote()) for runner in self._runners)))
        except (ray.exceptions.RayActorError, TimeoutError):
            return [0]


def _retrieve_error(work: asyncio.Task[pa.Table]) -> None:
    """Retrieves the error of an abandoned task, so that asyncio does not print it as never retrieved."""
    if not work.cancelled():
        work.exception()


async def _await(reference: Any) -> Any:
    return await reference
