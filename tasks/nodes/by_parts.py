"""Maps over the trajectories of a round where they lie, so that the process that leads never holds all of them."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from nbrl.infra.ray_data import map_tables
from nbrl.tasks.rollout.index import blocks_of, in_order


def over_parts(index: pa.Table, function: Callable[..., pa.Table], arguments: tuple[Any, ...], column: str) -> pa.Table:
    """`function(rows of the index, *arguments)` as a Ray Data map; a row for each of the index, in its order.

    `column` of the result is the trajectory's id.
    """
    return in_order(map_tables(blocks_of(index), function, arguments), index["id"].to_pylist(), column)
