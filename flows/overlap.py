"""Iterations whose rollouts run beside updates, so that each batch is sampled from weights that are some updates older."""

import asyncio
import time
from types import TracebackType

from prefect import flow

from nbrl.flows.collect import Batch, collect
from nbrl.flows.learn import Ahead, learn
from nbrl.tasks.nodes.record import Timing
from nbrl.tasks.runs.history import Position, Record, policy_after, position_after, published_mismatch, sampler_of
from nbrl.tasks.runs.lease import Writer
from nbrl.tasks.runs.scope import Scope
from nbrl.tasks.services.concurrently import all_of, beside, settled
from nbrl.tasks.services.progress import Busy
from nbrl.tasks.services.restarts import curable
from nbrl.tasks.services.services import Services

_collect = flow(
    name="collect", validate_parameters=False, flow_run_name="{scope.run} {scope.title}, rollouts", persist_result=False
)(collect)
_learn = flow(name="learn", validate_parameters=False, flow_run_name="{scope.run} {scope.title}, update", persist_result=False)(
    learn
)


class Overlap:
    """Collects batches ahead: at most as many at once as the lag. What is in flight at its end is given up.

    Which weights sample a batch, and with a lag above 1 which prompts it has, depends on its number alone; with a lag of 1 its
    prompts follow those of the batch before, which is collected by then. So a run that was killed anywhere does the same again.
    """

    def __init__(self, services: Services, writer: Writer) -> None:
        self._services, self._writer = services, writer
        self._lag = services.config.pipeline.lag
        self._in_flight: dict[int, asyncio.Task[Batch]] = {}
        self._busy = Busy()

    async def __aenter__(self) -> "Overlap":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for collecting in self._in_flight.values():
            collecting.cancel()
        await asyncio.gather(*self._in_flight.values(), return_exceptions=True)

    async def iterate(self, records: list[Record]) -> Record:
        """The iteration after `records`: learn from its batch while later ones are collected.

        Engines that have one set of weights get new ones when nothing is in flight.
        """
        services, number, started, busy = self._services, len(records), time.monotonic(), self._busy.seconds
        self.begin(records)
        batch = await beside(self._in_flight[number], self._in_flight.values(), lambda _: True)
        self.begin(records)
        del self._in_flight[number]
        scope = self._writer.iteration(number, policy_after(self._writer.run, records))
        alone_s, busy = self._busy.seconds - busy, self._busy.seconds

        async def changeable() -> None:
            if not services.config.publishes_adapters:
                await settled(self._in_flight.values())

        ahead = Ahead(changeable, lambda: self._busy.seconds - busy, published_mismatch(records))
        learning = _learn(services, scope, batch, Timing(started, alone_s), ahead)
        # A batch that fails for a fault that new services cure is collected again after this update, whose record is not lost.
        return await beside(learning, self._in_flight.values(), lambda error: not curable(error))

    def begin(self, records: list[Record]) -> None:
        """Begin to collect the batches after `records`: as many as the lag, and one more when the first of them is complete."""
        number, size, first = len(records), self._services.config.rollout.prompts, position_after(records)
        for later in range(self._lag):
            self._begin(records, number + later, first.further(later * size))
        next_one = self._in_flight.get(number)
        if next_one is not None and next_one.done() and next_one.exception() is None:
            self._begin(records, number + self._lag, next_one.result().after.further((self._lag - 1) * size))

    async def quiet(self) -> None:
        """Return when no batch is being collected. Raises the error of one that failed."""
        await all_of(map(asyncio.shield, self._in_flight.values()))

    def _begin(self, records: list[Record], number: int, start: Position) -> None:
        """Collect the batch of an iteration, if there is to be one and that has not begun."""
        if number not in self._in_flight and number < self._services.config.iterations:
            weights = sampler_of(self._writer.run, records, number, self._lag)
            scope = self._writer.iteration(number, weights)
            self._in_flight[number] = asyncio.ensure_future(self._collected(scope, start))

    async def _collected(self, scope: Scope, start: Position) -> Batch:
        with self._busy:
            return await _collect(self._services.apart(scope), scope, start)
