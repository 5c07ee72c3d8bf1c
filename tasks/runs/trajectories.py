"""Trajectories of a stored table, whatever it holds."""

from itertools import chain

import pyarrow as pa
import pyarrow.types as types
from pydantic import ValidationError

from nbrl.agent.trajectory import LATER, ROOT, SCHEMA, Trajectory, from_table, with_later_columns
from nbrl.infra.errors import DamagedError
from nbrl.infra.parts import INDEX, joined, taken
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import fault_in_words

MAY_BE_NULL = {"answer", *LATER}
LONGEST_S = 1e11  # a moment in seconds since 1970, or a duration, is less


def read_trajectories(storage: Storage, key: str, identity: str | None = None) -> pa.Table:
    """Return a table of trajectories, or its rows of one id. Of a table in parts, only the parts with these rows are read.

    Raises MissingError, or DamagedError if the table is not one of trajectories.
    """
    table = storage.read_table(key) if identity is None else _parts_with(storage, key, identity)
    table = with_later_columns(table)
    for field in SCHEMA:
        wrong = "lacks" if field.name not in table.column_names else _fault(table[field.name], field)
        if wrong:
            raise _damaged(storage, key, f"it {wrong} {field.name}")
    return table if identity is None else _of(table, identity)


def _of(table: pa.Table, identity: str) -> pa.Table:
    return taken(table, [place for place, each in enumerate(table["id"].to_pylist()) if each == identity])


def _parts_with(storage: Storage, key: str, identity: str) -> pa.Table:
    """Return the rows of a table that its index names for an id; the whole table if it has no such index."""
    index = storage.read_index(key) if key.endswith(INDEX) else None
    if index is None or "id" not in index.column_names:
        return storage.read_table(key)
    rows = _of(index, identity)
    return joined(rows, storage.read_table) if len(rows) else SCHEMA.empty_table()


def trajectories_of(storage: Storage, key: str, rows: pa.Table) -> list[Trajectory]:
    """Return the trajectories of some rows of the table. Raises DamagedError if they are none."""
    try:
        trajectories = from_table(rows)
    except ValidationError as error:
        raise _damaged(storage, key, fault_in_words(error)) from error
    for trajectory in trajectories:
        if not all(ROOT <= node.parent < place for place, node in enumerate(trajectory.nodes)):
            raise _damaged(storage, key, f"a node of {trajectory.id!r} does not come after its parent")
        seconds = [(step.policy_seconds, step.kernel_seconds) for step in trajectory.all_steps]
        if not all(0 <= each < LONGEST_S for each in (trajectory.started_at, trajectory.seconds, *chain(*seconds))):
            raise _damaged(storage, key, f"a time of {trajectory.id!r} is none")
        for node in trajectory.sampled():
            if node.logprobs and len(node.logprobs) != len(node.token_ids):
                raise _damaged(storage, key, f"a step of {trajectory.id!r} has not as many log-probs as tokens")
    return trajectories


def _fault(column: pa.ChunkedArray, field: pa.Field) -> str:
    alike = types.is_list(column.type) if types.is_list(field.type) else column.type == field.type
    if not alike:
        return "has another type of"
    return "lacks values of" if column.null_count and field.name not in MAY_BE_NULL else ""


def _damaged(storage: Storage, key: str, why: str) -> DamagedError:
    return DamagedError(f"{storage.uri(key)} is no table of trajectories: {why}; bring it back from a copy")
