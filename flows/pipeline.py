"""Iterations: batches are collected, and learned from. With a lag, so many batches are collected beside the updates."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import NamedTuple

from prefect import flow

from nbrl.tasks.learner.proof import Mismatch
from nbrl.tasks.nodes import recorded
from nbrl.tasks.nodes.branch import branch
from nbrl.tasks.nodes.publish import publish, published_mismatch
from nbrl.tasks.nodes.record import Timing, record, seconds_of
from nbrl.tasks.nodes.reward import reward
from nbrl.tasks.nodes.rollout import rollout
from nbrl.tasks.nodes.select import rate, retire, sample, select
from nbrl.tasks.nodes.teach import teach
from nbrl.tasks.nodes.update import advantage, nothing_to_gain, update
from nbrl.tasks.runs.history import Position, Record, policy_after, position_after, sampler_of
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.selection.judge import no_signal
from nbrl.tasks.services.concurrently import all_of, beside, settled
from nbrl.tasks.services.progress import Busy
from nbrl.tasks.services.restarts import curable
from nbrl.tasks.services.services import Services


class CollectedBatch(NamedTuple):
    """The artifacts of the nodes of each round, with the weights after `updates` updates. `after` is where the next batch begins;
    `skipped` says why nothing can be learned from this one, and is empty otherwise.
    """

    prompts: list[Artifact]
    trunks: list[Artifact]  # of a run that branches trajectories: those before
    trajectories: list[Artifact]
    rewards: list[Artifact]
    selections: list[Artifact]
    asked: list[Artifact]
    updates: int
    after: Position
    skipped: str

    @property
    def sampling_s(self) -> float:
        return seconds_of(self.prompts, [*self.trunks, *self.trajectories])

    @property
    def artifacts(self) -> list[Artifact]:
        return [*self.prompts, *self.trunks, *self.trajectories, *self.rewards, *self.selections, *self.asked]


@flow(name="collect", validate_parameters=False, flow_run_name="{scope.run} {scope.title}, rollouts", persist_result=False)
async def collect(services: Services, scope: Scope, start: Position) -> CollectedBatch:
    """Fill the batch of an iteration, whose prompts begin at `start`, sampled from the weights of `scope`."""
    config, (cursor, before) = services.config, start
    prompts, trajectories, rewards, selections = list[Artifact](), list[Artifact](), list[Artifact](), list[Artifact]()
    asked, trunks = list[Artifact](), list[Artifact]()
    missing = config.rollout.prompts  # groups
    for round_ in range(config.select.max_rounds):
        if config.recorded is None:
            prompts.append(await sample(services, scope, cursor, round_, before))
        else:
            prompts.append(await recorded.sample(services, scope, round_, before))
        trajectories.append(await rollout(services, scope, prompts[-1], round_))
        if config.rollout.branch is not None:
            trunks.append(trajectories.pop())
            trajectories.append(await branch(services, scope, prompts[-1], trunks[-1], round_))
        rewards.append(await reward(services, scope, prompts[-1], trajectories[-1], round_))
        selections.append(await select(services, scope, rewards[-1], missing, round_))
        if config.select.retire_at is not None:
            asked.append(await retire(services, scope, before, prompts[-1], rewards[-1], config.select.retire_at, round_))
        elif config.select.pools is not None:
            asked.append(await rate(services, scope, before, prompts[-1], rewards[-1], round_))
        elif config.recorded is not None:
            asked.append(await recorded.retire(services, scope, before, prompts[-1], round_))
        before = asked[-1] if asked else None
        cursor += int(prompts[-1].values["sample/positions"])
        missing -= int(selections[-1].values["select/kept"])
        if missing <= 0:
            break
    skipped = no_signal([selection.values for selection in selections]) if missing == config.rollout.prompts else ""
    return CollectedBatch(
        prompts, trunks, trajectories, rewards, selections, asked, scope.updates, Position(cursor, before), skipped
    )


class Ahead(NamedTuple):
    """Batches that are collected meanwhile: `changeable` returns once engines may get new weights, and `seconds` says for how
    long any was. `mismatch` is that of engine and trainer when the weights before the update were published.
    """

    changeable: Callable[[], Awaitable[None]]
    seconds: Callable[[], float]
    mismatch: Mismatch


@flow(name="learn", validate_parameters=False, flow_run_name="{scope.run} {scope.title}, update", persist_result=False)
async def learn(services: Services, scope: Scope, batch: CollectedBatch, timing: Timing, ahead: Ahead | None = None) -> Record:
    """Update the weights of `scope` from the batch, and publish them as soon as batches `ahead` allow it.

    If no round has a group with signal, or all kept steps have the same advantage, there is no update, and the record says
    why.
    """
    artifacts, skipped, staleness = batch.artifacts, batch.skipped, scope.updates - batch.updates
    if not skipped:
        advantages = await advantage(services, scope, batch.rewards, batch.selections)
        artifacts.append(advantages)
        skipped = nothing_to_gain(advantages.values, services.config.update.teacher is not None)
    updated: Artifact | None = None
    if not skipped:
        taught = []
        if services.config.update.teacher is not None:
            taught = [await teach(services, scope, advantages, batch.trajectories)]
        artifacts += taught
        updated = await update(services, scope, advantages, batch.trajectories, staleness, *taught)
        skipped = "" if updated.values["update/steps"] else "no optimiser step was taken, for none had a gradient"
    if updated is not None:
        if ahead is not None:
            await ahead.changeable()
        earlier = ahead.mismatch if ahead is not None and staleness else None
        artifacts += [updated, await publish(services, scope, updated, earlier)]
    if ahead is not None:
        timing = timing._replace(beside_s=ahead.seconds())
    return await record(services, scope, artifacts, batch.after.cursor, timing, batch.trajectories, updated, skipped)


@flow(name="iterate", validate_parameters=False, flow_run_name="{scope.run} {scope.title}", persist_result=False)
async def iterate(services: Services, scope: Scope, start: Position) -> Record:
    """Run one iteration as a DAG, without a lag: sample → rollout → reward → select → advantage → update → publish → record."""
    started = time.monotonic()
    batch = await collect.fn(services, scope, start)
    return await learn.fn(services, scope, batch, Timing(started, batch.sampling_s))


class Pipeline:
    """Iterations of a run, one after the other. With a lag, as many batches as that are collected ahead; what is in flight at its
    end is given up.

    Which weights sample a batch, and with a lag above 1 which prompts it has, depends on its number alone; with a lag of 1 its
    prompts follow those of the batch before, which is collected by then. So a run that was killed anywhere does the same again.
    """

    def __init__(self, services: Services, writer: Writer) -> None:
        self._services, self._writer = services, writer
        self._lag = services.config.pipeline.lag
        self._in_flight: dict[int, asyncio.Task[CollectedBatch]] = {}
        self._busy = Busy()

    async def __aenter__(self) -> "Pipeline":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for collecting in self._in_flight.values():
            collecting.cancel()
        await asyncio.gather(*self._in_flight.values(), return_exceptions=True)

    async def iterate(self, records: list[Record]) -> Record:
        """Return the iteration after `records`: collect its batch, where that has not begun, and learn from it.

        Engines that have one set of weights get new ones when nothing is in flight.
        """
        services, number, started, busy = self._services, len(records), time.monotonic(), self._busy.seconds
        scope = self._writer.iteration(number, policy_after(self._writer.run, records))
        if not self._lag:
            return await iterate(services, scope, position_after(records))
        self.begin(records)
        batch = await beside(self._in_flight[number], self._in_flight.values(), lambda _: True)
        self.begin(records)
        del self._in_flight[number]
        alone_s, busy = self._busy.seconds - busy, self._busy.seconds

        async def changeable() -> None:
            if not services.config.publishes_adapters:
                await settled(self._in_flight.values())

        ahead = Ahead(changeable, lambda: self._busy.seconds - busy, published_mismatch(records))
        learning = learn(services, scope, batch, Timing(started, alone_s), ahead)
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

    async def _collected(self, scope: Scope, start: Position) -> CollectedBatch:
        with self._busy:
            return await collect(self._services.apart(scope), scope, start)
