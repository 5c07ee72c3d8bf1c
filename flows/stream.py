"""Iterations of a run whose rollouts never stop: batches are made of what has finished, and the rest goes on through updates."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import pyarrow as pa
from prefect import flow

from nbrl.flows.pipeline import Ahead, CollectedBatch, learn
from nbrl.tasks.layout.stages import is_chunk
from nbrl.tasks.nodes import streamed
from nbrl.tasks.nodes.publish import published_mismatch
from nbrl.tasks.nodes.record import Timing
from nbrl.tasks.nodes.reward import reward
from nbrl.tasks.nodes.select import select
from nbrl.tasks.rollout.chunks import attempts_in
from nbrl.tasks.rollout.finished import group_of
from nbrl.tasks.rollout.plan import RoundPlan
from nbrl.tasks.rollout.stream import GroupInFlight, usable_attempts
from nbrl.tasks.runs.history import Position, Record, policy_after, position_after
from nbrl.tasks.runs.scope import Scope
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.selection.judge import no_signal
from nbrl.tasks.services.concurrently import beside
from nbrl.tasks.services.progress import Busy
from nbrl.tasks.services.restarts import curable
from nbrl.tasks.services.services import RowStream, Services


async def admitted(services: Services, scope: Scope, start: Position) -> CollectedBatch:
    """Make the batch of an iteration of the groups that are in flight at `start`, for an update of the weights of `scope`."""
    prompts = await streamed.admit(services, scope, start)
    trajectories = await streamed.rollout(services, scope, prompts, 0)
    rewards = await reward(services, scope, prompts, trajectories, 0)
    selection = await select(services, scope, rewards, services.config.rollout.prompts, 0, trajectories)
    flying = await streamed.refill(services, scope, start, prompts)
    rule = streamed.rule_of(services.config)
    after = Position(streamed.next_position(rule, start) + int(flying.values["sample/positions"]), flying)
    skipped = "" if selection.values["select/kept"] else no_signal([selection.values])
    sampled_by = max(0, scope.updates - rule.lag)
    return CollectedBatch([prompts], [], [trajectories], [rewards], [selection], [flying], sampled_by, after, skipped)


@flow(name="iterate", validate_parameters=False, flow_run_name="{scope.run} {scope.title}", persist_result=False)
async def iterate(
    services: Services,
    scope: Scope,
    start: Position,
    rows: RowStream,
    follow: Callable[[CollectedBatch], Awaitable[tuple[Timing, Ahead]]],
) -> Record:
    """Run one iteration as a DAG, beside the rollouts: admit → rollout → reward → select → refill, and what `learn` does.

    `follow` begins what follows the admitted batch.
    """
    batch = await beside(admitted(services, scope, start), rows.tasks, lambda _: True)
    timing, ahead = await follow(batch)
    return await beside(learn.fn(services, scope, batch, timing, ahead), rows.tasks, lambda error: not curable(error))


class Stream:
    """Iterations of a run, one after the other, beside rollouts that go on until its end.

    What is in flight is a function of the records, and what finished of it lies in chunks on the storage, where a run that was
    killed finds it. Which groups a batch has is decided once, by what had finished, and recorded before anything is learned.
    """

    def __init__(self, services: Services, writer: Writer) -> None:
        self._services, self._writer = services, writer
        self._ends, self._version = AsyncExitStack(), ""
        self._rows: RowStream | None = None
        self._begun, self._unfinished, self._busy = set[int](), set[str](), Busy()

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._ends.aclose()

    async def iterate(self, records: list[Record]) -> Record:
        """Return the iteration after `records`: admit its batch, and learn from it beside the rollouts."""
        services, number, started = self._services, len(records), time.monotonic()
        config, start = services.config, position_after(records)
        scope = self._writer.iteration(number, policy_after(self._writer.run, records))
        self._version = str(scope.updates)
        rows = self._rows or await self._open(scope, start)
        await self._begin(rows, scope, start)
        before, earlier = self._busy.seconds, published_mismatch(records)
        mixed, pauses = config.pipeline.mixed, not config.publishes_adapters

        async def changeable() -> None:
            if mixed is not None and pauses and (scope.updates + 1) % (mixed + 1) == 0:
                await rows.pause()

        async def follow(batch: CollectedBatch) -> tuple[Timing, Ahead]:
            if number + 1 < config.iterations:
                await self._begin(rows, scope, batch.after)
            now = self._busy.seconds
            return Timing(started, now - before), Ahead(changeable, lambda: self._busy.seconds - now, earlier)

        record = await iterate(services, scope, start, rows, follow)
        await rows.resume()
        flying = (await asyncio.to_thread(self._flying, scope, record.after))["group"].to_pylist()
        # What nothing in flight lies in any more; the batch has a copy of what it admitted.
        unneeded = services.finished.keep(flying)
        if number + 1 == config.iterations:  # else the next start looks for what another process left
            unneeded = await asyncio.to_thread(self._unneeded, scope, set(flying))
        await asyncio.to_thread(services.storage.delete_keys, unneeded)
        return record

    def begin(self, records: list[Record]) -> None:
        """Do nothing: what follows a batch has begun when that was admitted."""

    async def quiet(self) -> None:
        """Return at once: an evaluation runs beside the rollouts, with runners of its own."""

    async def _open(self, scope: Scope, start: Position) -> RowStream:
        """Find what earlier processes left, and let runners have rows from now on."""
        services, stage = self._services, scope.run_layout.stream(scope.epoch)
        await services.serve(scope)
        await self._find(scope, start)
        plan = RoundPlan(
            stage.round(0).chunks(""),
            (),
            services.config.sampling,
            services.config.engine,
            routed=services.config.update.router_replay,
            mixed=streamed.rule_of(services.config).mixed,
        )
        opened = services.streaming_runners.stream(
            lambda: services.engines.addresses(self._version),
            plan,
            self._found,
            services.engines.check_health,
            services.progress.say,
        )
        self._rows = await self._ends.enter_async_context(opened)
        return self._rows

    async def _find(self, scope: Scope, start: Position) -> None:
        """Note the trajectories in the chunks of earlier processes, and delete the chunks without one that counts."""
        services, before = self._services, await streamed.admit.found(self._services, scope, start)
        keys = list(filter(is_chunk, await asyncio.to_thread(services.storage.list, scope.run_layout.stream().folder)))
        index, damaged = await asyncio.to_thread(attempts_in, services.storage, keys)
        for chunk in damaged:
            services.progress.say(f"{chunk} is damaged: its trajectories are run again")
        admitted = {}
        if before is not None:
            prompts = await asyncio.to_thread(services.read, before)
            admitted = streamed.admitted_attempts(services.config, prompts)
        kept = usable_attempts(index, streamed.rule_of(services.config).mixed, admitted)
        services.finished.note(kept)
        await asyncio.to_thread(services.storage.delete_keys, set(keys) - set(kept["part"].to_pylist()))

    def _unneeded(self, scope: Scope, groups: Collection[str]) -> list[str]:
        """Return the chunks of the run's streams in which nothing of these groups lies, whichever process left them."""
        keys = list(filter(is_chunk, self._services.storage.list(scope.run_layout.stream().folder)))
        index, _ = attempts_in(self._services.storage, keys)
        pairs = zip(index["id"].to_pylist(), index["part"].to_pylist(), strict=True)
        return sorted(set(keys) - {part for name, part in pairs if group_of(name) in groups})

    def _flying(self, scope: Scope, start: Position) -> pa.Table:
        """Return the prompts of the groups in flight."""
        return self._prompts(scope, streamed.in_flight(self._services, start))

    def _prompts(self, scope: Scope, groups: Sequence[GroupInFlight]) -> pa.Table:
        questions = self._services.reads.questions(scope.run_layout.data, "train")
        return streamed.stream_prompts(self._services.config, questions, scope.seed, groups)

    def _new_rows(self, scope: Scope, start: Position) -> list[dict[str, Any]]:
        """Return the rows of the groups in flight that have neither begun in this process nor finished in an earlier one."""
        groups = [each for each in streamed.in_flight(self._services, start) if each.position not in self._begun]
        self._begun.update(each.position for each in groups)
        rows = streamed.stream_rows(self._services.config, scope, self._prompts(scope, groups))
        return [row for row in rows if row["id"] not in self._services.finished]

    async def _begin(self, rows: RowStream, scope: Scope, start: Position) -> None:
        """Let runners have the trajectories of groups that are in flight, but for those that had them or have finished."""
        new = await asyncio.to_thread(self._new_rows, scope, start)
        if new and not self._unfinished:
            self._busy.__enter__()
        self._unfinished.update(row["id"] for row in new)
        await rows.add(new)

    def _found(self, index: pa.Table) -> None:
        """Note what has finished."""
        before = bool(self._unfinished)
        self._unfinished.difference_update(index["id"].to_pylist())
        if before and not self._unfinished:
            self._busy.__exit__(None, None, None)
        self._services.finished.note(index)
