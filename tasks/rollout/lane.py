"""The function that Ray Data maps over the runners: each brings the index of what it ran."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayActorError

from nbrl.tasks.rollout.plan import RoundPlan

AGAIN_S = 1.0  # between two attempts to reach a runner that is being started again


def run_lane(lane: pa.Table, runners: Sequence[Any], desk: Any, name: str, plan: RoundPlan) -> pa.Table:
    """Keep a runner at the round until that is over, whoever finishes it; return the rows of the index that the runner brought.

    A runner that ends is asked again as soon as it lives. Raises what it raises, and RayActorError when the desk is gone.
    """
    number = lane["runner"][0].as_py()
    over = desk.completed.remote(name)
    while True:
        work = runners[number].run.remote(name, plan)
        ended, _ = ray.wait([over, work])
        if over in ended:
            break
        with suppress(RayActorError):
            ray.get(work)
        if ray.wait([over], timeout=AGAIN_S)[0]:
            break
    ray.get(over)
    found: pa.Table = ray.get(desk.index.remote(name, number))
    return found
