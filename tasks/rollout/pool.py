"""The pool of runners, and Ray Data over it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayTaskError

from nbrl.agent.errors import AgentError
from nbrl.infra.errors import InfraError
from nbrl.infra.process.budget import Budget
from nbrl.infra.ray_data import map_tables
from nbrl.sandbox.errors import SandboxError
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.rollout.plan import EngineAddress, RolloutBatch, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.runner import Runner

POLL_S = 0.25
CPU_SHARE = 0.01  # runners share the cores with engines and ranks; Ray spreads only what asks for something
RESTARTS, WINDOW_S = 5, 600.0  # of all runners together
RETRIES = 20  # of one call: a runner that ends at once is never seen, so nothing else counts it
STOP_S = 10.0
ANSWER_S = 2.0


def run_on_runner(
    rows: pa.Table,
    runners: list[Any],
    engines: Sequence[EngineAddress],
    plan: RoundPlan,
) -> pa.Table:
    """The function that Ray Data maps: from the rows of one runner to their trajectories."""
    number = rows["runner"][0].as_py()
    first = number % len(engines)  # so that not all runners begin with the same one
    batch = RolloutBatch(rows.drop_columns(["runner"]).to_pylist(), [*engines[first:], *engines[:first]], plan)
    return ray.get(runners[number].run.remote(batch))


class RunnerPool:
    """Runners that live as long as the run. Ray restarts one that dies; its unfinished trajectories are run again.

    Of too many restarts in a short time the rollout ends.
    """

    def __init__(self, plan: RunnerPlan) -> None:
        actor: Any = ray.remote(Runner)
        remote = actor.options(
            num_cpus=CPU_SHARE,
            resources=plan.rollout.resources,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
            max_task_retries=RETRIES,
        )
        self._runners = [remote.remote(plan) for _ in range(plan.rollout.runners)]
        self._lives: dict[int, str] = {}  # the life of each runner that was seen last
        self._budget = Budget(RESTARTS, WINDOW_S)
        self._maps: list[asyncio.Task[pa.Table]] = []  # maps that have not ended, awaited or abandoned

    async def start(self, say: Callable[[str], None]) -> None:
        """Start all runners; `say` hears of long work. Raises the AgentError, SandboxError or InfraError of one that cannot."""
        heard = [0] * len(self._runners)
        starts = asyncio.gather(*(_await(runner.start.remote()) for runner in self._runners))
        try:
            while not starts.done():
                await asyncio.wait([starts], timeout=POLL_S)
                for number, said in (await _answers([runner.said.remote() for runner in self._runners])).items():
                    for sentence in said[heard[number] :]:
                        say(sentence)
                    heard[number] = len(said)
            await starts
            await self._look()
        except RayTaskError as error:
            if isinstance(error.cause, AgentError | SandboxError | InfraError):
                raise error.cause from error  # Ray's own text is the runner's traceback
            raise
        finally:
            starts.cancel()

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
        engines: Sequence[EngineAddress],
        plan: RoundPlan,
        progress: Callable[[int], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> pa.Table:
        """Return the trajectories of all rows, sampled by `engines`.

        What finishes is kept in the plan's folder `unfinished`; what is there or in its `earlier` folders is not run again.
        `progress` is called with the number of finished ones; `healthy` is called often, and an exception of it ends
        the work; `say` hears of runners that were started again, and what was found damaged.
        """
        count = len(self._runners)
        shares = [pa.Table.from_pylist([{**row, "runner": n} for row in rows[n::count]]) for n in range(min(count, len(rows)))]
        finished = before = await self._looked(say)
        arguments = (self._runners, engines, plan)
        work = asyncio.create_task(asyncio.to_thread(map_tables, shares, run_on_runner, arguments))
        work.add_done_callback(_retrieve_error)
        self._maps = [*(task for task in self._maps if not task.done()), work]
        while not work.done():
            await asyncio.wait([work], timeout=POLL_S)
            healthy()
            finished = max(finished, await self._looked(say))
            progress(finished - before)
        try:
            table = work.result()
        except ray.exceptions.RayError as error:
            raise RolloutError(f"the runners failed beyond their retry budget: {str(error).splitlines()[0]}") from error
        for chunk in await self._damaged():
            say(f"{chunk} is damaged: its trajectories were run again")
        return table

    async def _damaged(self) -> list[str]:
        """Damaged chunks, each once: every runner reads all of them."""
        found = await asyncio.gather(*(_await(runner.damaged.remote()) for runner in self._runners))
        return sorted({chunk for chunks in found for chunk in chunks})

    async def _look(self) -> tuple[int, int]:
        """Finished trajectories of the runners, and those that live anew since they were last looked at.

        A runner that is busy or being restarted is left out: a count is not worth waiting for it.
        """
        finished = restarted = 0
        for number, (life, count) in (await _answers([runner.finished.remote() for runner in self._runners])).items():
            finished += count
            restarted += self._lives.get(number, life) != life
            self._lives[number] = life
        return finished, restarted

    async def _looked(self, say: Callable[[str], None]) -> int:
        """Finished trajectories of the runners. Raises RolloutError if too many runners were started again."""
        finished, restarted = await self._look()
        for _ in range(restarted):
            if not self._budget.spend():
                raise RolloutError(
                    f"runners ended more often than {self._budget}: does this machine lack memory? The logs of Ray say more"
                )
            say("a runner ended and was started again; its finished trajectories are kept")
        return finished


async def _answers(references: list[Any]) -> dict[int, Any]:
    """The answers of runners by number, without those that do not come in time or are errors."""
    asked = [asyncio.ensure_future(_await(reference)) for reference in references]
    await asyncio.wait(asked, timeout=ANSWER_S)
    answers = {}
    for number, answer in enumerate(asked):
        if answer.done() and answer.exception() is None:
            answers[number] = answer.result()
        answer.cancel()
    return answers


def _retrieve_error(work: asyncio.Task[pa.Table]) -> None:
    """Retrieves the error of an abandoned task, so that asyncio does not print it as never retrieved."""
    if not work.cancelled():
        work.exception()


async def _await(reference: Any) -> Any:
    return await reference
