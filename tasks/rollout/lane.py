"""The function that Ray Data maps over the runners, some at once: they bring the index of what they ran."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayActorError

from nbrl.tasks.rollout.plan import RoundPlan

AGAIN_S = 1.0  # between two attempts to reach a runner that is being started again


def first_map(table: pa.Table) -> pa.Table:
    """Return the table. Ray Data's first map starts two processes, which takes two seconds: this does it before a round."""
    return table


def run_lane(lane: pa.Table, runners: Sequence[Any], desk: Any, name: str, plan: RoundPlan) -> pa.Table:
    """Keep runners at the round until that is over, whoever finishes it; return the rows of the index that they brought.

    A runner that ends is asked again as soon as it lives. Raises what one raises, and RayActorError when the desk is gone.
    """
    numbers = lane["runner"].to_pylist()
    over = desk.completed.remote(name)
    work = {runners[number].run.remote(name, plan): number for number in numbers}
    while True:
        if over in ray.wait([over, *work])[0]:
            break
        for ended in ray.wait(list(work), num_returns=len(work), timeout=0)[0]:
            with suppress(RayActorError):
                ray.get(ended)
            number = work.pop(ended)
            work[runners[number].run.remote(name, plan)] = number
        if ray.wait([over], timeout=AGAIN_S)[0]:
            break
    ray.get(over)
    found: list[pa.Table] = ray.get([desk.index.remote(name, number) for number in numbers])
    return pa.concat_tables(found)
