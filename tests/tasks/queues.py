"""Rounds that one runner plays in this process."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from nbrl.infra.parts import joined
from nbrl.infra.storage import Storage
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan
from nbrl.tasks.rollout.runner import Runner
from nbrl.tasks.rollout.work_queue import WorkQueue

ENGINES = [EngineAddress("double://")]


async def index_by(
    runner: Runner, queue: WorkQueue, rows: Sequence[dict[str, Any]], plan: RoundPlan, engines: Sequence[EngineAddress] = ENGINES
) -> pa.Table:
    """The index of a round that a runner plays alone."""
    await queue.open("round", len(rows), engines, False)
    await queue.add("round", rows)
    await runner.run("round", plan)
    return await queue.index("round", [row["id"] for row in rows])


async def played_by(
    storage: Storage, runner: Runner, queue: WorkQueue, rows: Sequence[dict[str, Any]], plan: RoundPlan
) -> pa.Table:
    """The trajectories of such a round."""
    return joined(await index_by(runner, queue, rows, plan), storage.read_table)
