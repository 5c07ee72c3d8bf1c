"""The index of a round: where each trajectory lies, and what is told of it without reading it."""

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra.parts import DIGEST, PART, ROW
from nbrl.infra.storage import Storage

BLOCK_ROWS = 256  # that one task reads at once

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        (PART, pa.string()),
        (DIGEST, pa.string()),
        (ROW, pa.int64()),
        ("status", pa.string()),
        ("failure", pa.string()),
        ("environment", pa.string()),
        ("ability", pa.string()),
        ("steps", pa.int64()),
        ("sampled_tokens", pa.int64()),
        ("policy_seconds", pa.float64()),
        ("kernel_seconds", pa.float64()),
        ("started_at", pa.float64()),
        ("seconds", pa.float64()),
        ("versions", pa.list_(pa.string())),  # of the weights that sampled its actions
    ]
)


def index_of(trajectories: Sequence[Trajectory], part: str, digest: str) -> pa.Table:
    """The rows of a part that holds these trajectories."""
    rows = [_row(trajectory, part, digest, row) for row, trajectory in enumerate(trajectories)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _row(trajectory: Trajectory, part: str, digest: str, row: int) -> dict[str, object]:
    sampled = list(trajectory.sampled())
    return {
        "id": trajectory.id,
        PART: part,
        DIGEST: digest,
        ROW: row,
        "status": trajectory.status,
        "failure": trajectory.failure,
        "environment": trajectory.environment,
        "ability": trajectory.ability,
        "steps": len(trajectory.steps),
        "sampled_tokens": sum(len(node.token_ids) for node in sampled),
        "policy_seconds": sum(step.policy_seconds for step in trajectory.steps),
        "kernel_seconds": sum(step.kernel_seconds for step in trajectory.steps),
        "started_at": trajectory.started_at,
        "seconds": trajectory.seconds,
        "versions": sorted({node.weights_version for node in sampled}),
    }


def finished_of(index: pa.Table, ids: Collection[str]) -> pa.Table:
    """Of these ids the first row each; without trajectories that failed, which are run again."""
    left, places = set(ids), []
    for place, (identity, status) in enumerate(zip(index["id"].to_pylist(), index["status"].to_pylist(), strict=True)):
        if identity in left and status != Status.FAILED:
            left.discard(identity)
            places.append(place)
    return index.take(pa.array(places, pa.int64()))


def in_order(table: pa.Table, ids: Sequence[str], column: str = "id") -> pa.Table:
    """The rows in the order of these ids, each of which the column has once."""
    return table.take(pc.index_in(pa.array(ids, pa.string()), value_set=table[column].combine_chunks()))


def places_of(storage: Storage, key: str, digest: str) -> pa.Table:
    """Where each trajectory of a round lies, by its id, in the round's order."""
    return storage.read_index(key, digest).select(["id", PART, DIGEST, ROW])


def blocks_of(index: pa.Table) -> list[pa.Table]:
    """Rows of an index in blocks of whole parts, of BLOCK_ROWS rows or the last part's more."""
    of_parts: dict[str, list[int]] = {}
    for place, part in enumerate(index[PART].to_pylist()):
        of_parts.setdefault(part, []).append(place)
    blocks: list[list[int]] = [[]]
    for places in of_parts.values():
        if len(blocks[-1]) >= BLOCK_ROWS:
            blocks.append([])
        blocks[-1] += places
    return [index.take(pa.array(places, pa.int64())) for places in blocks]
