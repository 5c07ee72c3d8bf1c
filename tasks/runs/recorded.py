"""Reads tables of trajectories to show them; what is in them may be damaged, or written by others."""

import pyarrow as pa
import pyarrow.types as types
from pydantic import ValidationError

from nbrl.agent.trajectory import SCHEMA, Trajectory, from_table
from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import fault_in_words

MAY_BE_NULL = {"answer"}


def read_trajectories(storage: Storage, key: str) -> pa.Table:
    """Raises MissingError, or DamagedError if the table is not one of trajectories."""
    table = storage.read_table(key)
    for field in SCHEMA:
        wrong = "lacks" if field.name not in table.column_names else _fault(table[field.name], field)
        if wrong:
            raise _damaged(storage, key, f"it {wrong} {field.name}")
    return table


def trajectories_of(storage: Storage, key: str, rows: pa.Table) -> list[Trajectory]:
    """The trajectories of some rows of the table. Raises DamagedError if they are none."""
    try:
        found = from_table(rows)
    except ValidationError as error:
        raise _damaged(storage, key, fault_in_words(error)) from error
    for trajectory in found:
        for node in trajectory.sampled():
            if node.logprobs and len(node.logprobs) != len(node.token_ids):
                raise _damaged(storage, key, f"a step of {trajectory.id!r} has not as many log-probs as tokens")
    return found


def _fault(column: pa.ChunkedArray, field: pa.Field) -> str:
    alike = types.is_list(column.type) if types.is_list(field.type) else column.type == field.type
    if not alike:
        return "has another type of"
    return "lacks values of" if column.null_count and field.name not in MAY_BE_NULL else ""


def _damaged(storage: Storage, key: str, why: str) -> DamagedError:
    return DamagedError(f"{storage.uri(key)} is no table of trajectories: {why}; bring it back from a copy")
