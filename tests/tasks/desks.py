"""A desk without Ray, and rounds that one runner plays in this process."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pyarrow as pa

from nbrl.infra.arrow_files import joined
from nbrl.infra.storage import Storage
from nbrl.tasks.rollout.chunks import in_order
from nbrl.tasks.rollout.desk import Desk
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan
from nbrl.tasks.rollout.runner import Runner

ENGINES = [EngineAddress("double://")]


class Call:
    """A method as that of an actor."""

    def __init__(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._method = method

    def remote(self, *arguments: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._method(*arguments))
        return asyncio.ensure_future(self._method(*arguments))


class LocalDesk:
    def __init__(self) -> None:
        self.desk = Desk()
        self.born, self.take, self.finish = Call(self.desk.born), Call(self.desk.take), Call(self.desk.finish)
        self.begin = Call(self.desk.begin)


async def index_by(
    runner: Runner, desk: LocalDesk, rows: Sequence[dict[str, Any]], plan: RoundPlan, engines: Sequence[EngineAddress] = ENGINES
) -> pa.Table:
    """The index of a round that a runner plays alone."""
    await desk.desk.open("round", rows, engines, False)
    await runner.run("round", plan)
    return in_order(await desk.desk.index("round", 0), [row["id"] for row in rows])


async def played_by(
    storage: Storage, runner: Runner, desk: LocalDesk, rows: Sequence[dict[str, Any]], plan: RoundPlan
) -> pa.Table:
    """The trajectories of such a round."""
    return joined(await index_by(runner, desk, rows, plan), storage.read_table)
