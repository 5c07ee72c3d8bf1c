"""Ray Data as a map over Arrow tables."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray
import ray.data

LOGGER = logging.getLogger("ray.data")


def map_tables(tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
    """`function(table, *arguments)` of every table as plain Ray Data tasks; the results in one table, order kept.

    One task a table. The function is sent by name, so its module should import quickly. What it raises is raised here.
    """
    LOGGER.setLevel(logging.ERROR)  # each execution would write a dozen lines
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    dataset = ray.data.from_arrow(list(tables))
    mapped = dataset.map_batches(function, batch_size=None, batch_format="pyarrow", fn_args=arguments, num_cpus=0)
    return pa.concat_tables(ray.get(mapped.to_arrow_refs()))


def fall_silent() -> None:
    """Silence Ray Data at the end of a run: abandoned maps fail when Ray ends, each with a long trace."""
    LOGGER.setLevel(logging.CRITICAL)
