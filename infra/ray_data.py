"""Ray Data as a map over Arrow tables."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data._internal import stats
from ray.data._internal.execution import streaming_executor
from ray.exceptions import RayTaskError

from nbrl.infra.errors import ServerError

NODE = "ray.io/node-id"  # a label that Ray gives each machine
LOGGER = logging.getLogger("ray.data")


class _NoStatistics:
    """Replaces Ray Data's actor that keeps figures of maps for a dashboard: its process would take each start seconds."""

    def __getattr__(self, name: str) -> "_NoStatistics":
        return self

    def remote(self, *_: Any, **__: Any) -> None: ...


stats.get_or_create_stats_actor = _NoStatistics  # type: ignore[assignment]
for each in ("register_dataset_logger", "unregister_dataset_logger"):  # each map would leave a log file
    setattr(streaming_executor, each, lambda dataset: None)


def map_tables(tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
    """Return `function(table, *arguments)` of every table as plain Ray Data tasks; the results in one table, order kept.

    One task a table. The function is sent by name, so its module should import quickly. What it raises is raised here, as it
    was raised there.
    """
    # Each execution would write a dozen lines, a failed one its trace, and one that is abandoned fails when Ray ends.
    LOGGER.setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    context.raise_original_map_exception = True
    dataset = ray.data.from_arrow(list(tables))
    mapped = dataset.map_batches(
        function, batch_size=None, batch_format="pyarrow", fn_args=arguments, num_cpus=0, label_selector=here()
    )
    try:
        # `to_arrow_refs` would ask some machine for statistics of all, and wait a minute for one that has fallen silent.
        blocks = [entry.ref for bundle in mapped.iter_internal_ref_bundles() for entry in bundle.blocks]
        return pa.concat_tables(ray.get(blocks))
    except RayTaskError as error:
        raise raised_in_task(error) from error
    except SystemExit as error:  # Ray's way to end a wait when it is shut down; it would end the process
        raise ServerError("Ray was shut down during a map") from error


def here() -> dict[str, str]:
    """Return a label selector with which tasks and actors run on the machine of this process.

    So the death of another machine does not affect actors that only wait or pass on: a task on a machine that falls silent is
    missed after minutes.
    """
    return {NODE: ray.get_runtime_context().get_node_id()}


def among(machines: Sequence[str]) -> dict[str, str]:
    """Return a label selector for machines with these ids."""
    return {NODE: f"in({','.join(machines)})"}


def raised_in_task(error: Exception) -> Exception:
    """Return what a task itself raised, without Ray's traces of it and of the tasks that awaited it."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        error = error.cause
    if isinstance(error, RayTaskError):  # its text begins with the task's name, in colour, and ends with what happened
        return ServerError(f"a task of Ray failed: {(str(error).strip().splitlines() or [type(error.cause).__name__])[-1]}")
    return error
