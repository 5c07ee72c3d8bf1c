"""Iterations whose rollouts run beside the update before them, so that each batch is sampled from weights an update older."""

import asyncio
import time

from prefect import flow

from nbrl.flows.collect import Batch, collect
from nbrl.flows.learn import learn
from nbrl.tasks.nodes.record import Timing, seconds_of
from nbrl.tasks.runs.history import Record, policy_after, position_after, sampler_of
from nbrl.tasks.runs.lease import Writer
from nbrl.tasks.runs.scope import Scope
from nbrl.tasks.services.concurrently import both
from nbrl.tasks.services.progress import Titled
from nbrl.tasks.services.services import Services

_collect = flow(
    name="collect", validate_parameters=False, flow_run_name="{scope.run} {scope.title}, rollouts", persist_result=False
)(collect)
_learn = flow(name="learn", validate_parameters=False, flow_run_name="{scope.run} {scope.title}, update", persist_result=False)(
    learn
)


class Overlap:
    """Knows the batch that was collected beside the last update. Without, as after a start, the next one is collected first."""

    def __init__(self, services: Services, writer: Writer) -> None:
        self._services, self._writer = services, writer
        self._ahead: Batch | None = None

    async def iterate(self, records: list[Record]) -> Record:
        """The iteration after `records`: learn from its batch while the next one is collected, and publish when both are done.

        Which weights sample a batch depends on its number alone, and which prompts it has on the batches before it. So a run
        that was killed anywhere does the same again.
        """
        services, number, started, alone_s = self._services, len(records), time.monotonic(), 0.0
        batch, self._ahead = self._ahead, None
        if batch is None:
            batch = await _collect(services, self._scope(records, number), position_after(records))
            alone_s = seconds_of(batch.trajectories)
        scope = self._writer.iteration(number, policy_after(self._writer.run, records))
        timing = Timing(started, alone_s)
        if number + 1 == services.config.iterations:
            return await _learn(services, scope, batch, timing)
        next_ = self._scope(records, number + 1)
        shown = services.shown_by(Titled(services.progress, next_.title))
        collecting = asyncio.ensure_future(_collect(shown, next_, batch.after))

        async def ahead() -> Batch:
            return await collecting

        record, self._ahead = await both(_learn(services, scope, batch, timing, ahead), collecting)
        return record

    def _scope(self, records: list[Record], number: int) -> Scope:
        """Of the rollouts of an iteration."""
        weights = sampler_of(self._writer.run, records, number, self._services.config.pipeline.lag)
        return self._writer.iteration(number, weights)
