"""Keeps the runners of a pool at a round: starts them again, passes on where engines are, and looks for what they finished."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from nbrl.infra.process.shared import Budget
from nbrl.infra.ray_data import raised_in_task
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.rollout.calls import GONE_S, answer, answers_in_time, queue_answer
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan
from nbrl.tasks.rollout.queued_round import QueueStatus

AGAIN_S = 1.0  # between two attempts to reach a runner that is being started again
POLL_S = 1.0
RESTARTS, WINDOW_S = 5, 600.0  # of all runners together, and one more for each runner but the first
FIND_S = 600.0  # a runner may take so long to look through chunks


class RunnerSupervisor:
    """Supervises runners, which are actors, for as long as they live. Of too many restarts in a short time the rollout ends."""

    def __init__(self, runners: Sequence[Any], queue: Any, storage: Storage) -> None:
        self._runners, self._queue, self._storage = runners, queue, storage
        self._budget = Budget(RESTARTS + len(runners) - 1, WINDOW_S)
        self._lived = time.monotonic()

    async def supervise(
        self,
        name: str,
        plan: RoundPlan,
        work: asyncio.Future[Any],
        engines: Callable[[], Sequence[EngineAddress]],
        progress: Callable[[int], None],
        healthy: Callable[[], None],
        say: Callable[[str], None],
    ) -> set[str]:
        """Keep runners at the round of this name until `work` is done; return the addresses of damaged chunks.

        `engines`, `progress`, `healthy` and `say` are those of `RunnerPool.run`. Raises RolloutError, and what a runner raises.
        """
        running = asyncio.gather(*(_keep_running(runner, name, plan) for runner in self._runners))
        settling: asyncio.Task[set[str]] | None = None
        damaged, where = set[str](), list[EngineAddress]()
        self._lived = time.monotonic()
        try:
            while not work.done():
                await asyncio.wait([work, running], timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
                healthy()
                if (now := list(engines())) != where:
                    where = now
                    await queue_answer(self._queue.move.remote(where))
                status = (await answers_in_time([self._queue.look.remote()])).get(0)
                self._check(status, say)
                if status is not None:
                    progress(status.finished)
                    if settling is None and status.doubtful and status.living:
                        settling = asyncio.create_task(self._settle(name, plan, status))
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

    async def left(self, plan: RoundPlan) -> list[str]:
        """Return keys of the chunks that are there."""
        folders = (*plan.earlier, plan.chunks)
        return [key for folder in folders for key in await asyncio.to_thread(self._storage.list, folder)]

    async def _settle(self, name: str, plan: RoundPlan, status: QueueStatus) -> set[str]:
        """Let a runner look for doubtful rows in the chunks that were not reported; return the damaged ones.

        Without a runner that can, the rows stay doubtful until the next look.
        """
        keys = [key for key in await self.left(plan) if key not in status.known]
        for number in status.living:
            finding = answer(self._runners[number].find.remote(keys, status.doubtful))
            try:
                index, damaged = await asyncio.wait_for(finding, FIND_S)
            except (TimeoutError, RayActorError):
                continue
            await queue_answer(self._queue.settle.remote(name, status.doubtful, index))
            return set(damaged)
        return set()

    def _check(self, status: QueueStatus | None, say: Callable[[str], None]) -> None:
        """Raises RolloutError if too many runners were started again, or neither one nor the queue has given a sign for long."""
        for number in status.silent if status else ():
            say(f"runner {number} gives no sign; others run what it had not finished")
        for _ in range(status.restarts if status else 0):
            if not self._budget.spend():
                raise RolloutError(
                    f"runners ended more often than {self._budget}: does this machine lack memory? The logs of Ray say more"
                )
            say("a runner ended and was started again; its finished trajectories are kept")
        now = time.monotonic()
        if status and status.living:
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
