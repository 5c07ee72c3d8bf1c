"""Learns from a batch: advantage → update → publish → record."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from nbrl.flows.collect import Batch
from nbrl.tasks.learner.proof import Mismatch
from nbrl.tasks.nodes.advantage import advantage, nothing_to_gain
from nbrl.tasks.nodes.publish import publish
from nbrl.tasks.nodes.record import Timing, record
from nbrl.tasks.nodes.update import update
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


class Ahead(NamedTuple):
    """Batches that are collected meanwhile: `changeable` returns once engines may get new weights, and `seconds` says for how
    long any was. `mismatch` is that of engine and trainer when the weights before the update were published.
    """

    changeable: Callable[[], Awaitable[None]]
    seconds: Callable[[], float]
    mismatch: Mismatch


async def learn(services: Services, scope: Scope, batch: Batch, timing: Timing, ahead: Ahead | None = None) -> Record:
    """Update the weights of `scope` from the batch, and publish them as soon as batches `ahead` allow it.

    If no round has a group with signal, or all kept steps have the same advantage, there is no update, and the record says
    why.
    """
    artifacts, skipped, staleness = batch.artifacts, batch.skipped, scope.updates - batch.updates
    if not skipped:
        advantages = await advantage(services, scope, batch.rewards, batch.selections)
        artifacts.append(advantages)
        skipped = nothing_to_gain(advantages.values)
    updated: Artifact | None = None
    if not skipped:
        updated = await update(services, scope, advantages, batch.trajectories, staleness)
        skipped = "" if updated.values["update/steps"] else "no optimiser step was taken, for none had a gradient"
    if updated is not None:
        if ahead is not None:
            await ahead.changeable()
        earlier = ahead.mismatch if ahead is not None and staleness else None
        artifacts += [updated, await publish(services, scope, updated, earlier)]
    if ahead is not None:
        timing = timing._replace(beside_s=ahead.seconds())
    return await record(services, scope, artifacts, batch.after.cursor, timing, batch.trajectories, updated, skipped)
