"""Finished trajectories on storage, several in one object, a chunk; the chunks of a round are the parts of its table.

The name of a chunk is the SHA-256 of its bytes, so that runners and processes can share a folder and damage is seen.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from nbrl.agent.trajectory import Status, Trajectory, from_table, to_table
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import PARALLEL
from nbrl.infra.parts import DIGEST, PART, ROW, joined
from nbrl.infra.storage import Storage, encode, sha256
from nbrl.tasks.layout.stages import chunk

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
EVERY_S = 2.0  # what a kill can cost of the work that is finished

Written = Callable[[pa.Table], Awaitable[Collection[str]]]


def index_of(trajectories: Sequence[Trajectory], part: str, digest: str) -> pa.Table:
    """Return the rows of a part that holds these trajectories."""
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
        "policy_seconds": sum(step.policy_seconds for step in trajectory.all_steps),
        "kernel_seconds": sum(step.kernel_seconds for step in trajectory.steps),
        "started_at": trajectory.started_at,
        "seconds": trajectory.seconds,
        "versions": sorted({node.weights_version for node in sampled}),
    }


def finished_of(index: pa.Table, ids: Collection[str] | None) -> pa.Table:
    """Return the first row of each of these ids, or of all, without trajectories that failed, which are run again."""
    left, places = set(index["id"].to_pylist() if ids is None else ids), []
    for place, (identity, status) in enumerate(zip(index["id"].to_pylist(), index["status"].to_pylist(), strict=True)):
        if identity in left and status != Status.FAILED:
            left.discard(identity)
            places.append(place)
    return index.take(pa.array(places, pa.int64()))


def in_order(table: pa.Table, ids: Sequence[str], column: str = "id") -> pa.Table:
    """Return the rows in the order of these ids, each of which the column has once."""
    return table.take(pc.index_in(pa.array(ids, pa.string()), value_set=table[column].combine_chunks()))


def places_of(storage: Storage, key: str, digest: str) -> pa.Table:
    """Return where each trajectory of a round lies, by its id, in the round's order."""
    return storage.read_index(key, digest).select(["id", PART, DIGEST, ROW])


def blocks_of(index: pa.Table) -> list[pa.Table]:
    """Return the rows of an index in blocks of whole parts, of BLOCK_ROWS rows or the last part's more."""
    of_parts: dict[str, list[int]] = {}
    for place, part in enumerate(index[PART].to_pylist()):
        of_parts.setdefault(part, []).append(place)
    blocks: list[list[int]] = [[]]
    for places in of_parts.values():
        if len(blocks[-1]) >= BLOCK_ROWS:
            blocks.append([])
        blocks[-1] += places
    return [index.take(pa.array(places, pa.int64())) for places in blocks]


class Chunks:
    """Writes what finishes into `folder`, at most one chunk in EVERY_S, and at once when it is all.

    `written` gets the rows of each chunk's index once it is on storage, and returns the ids that do not count.
    """

    def __init__(self, storage: Storage, folder: str, written: Written) -> None:
        self._storage, self._folder, self._written = storage, folder, written
        self._expected, self._more = 0, True
        self._waiting: list[tuple[Trajectory, pa.Table]] = []
        self._writer: asyncio.Task[Collection[str]] | None = None
        self._all = asyncio.Event()

    def expect(self, count: int, more: bool) -> None:
        """Expect so many further trajectories, and perhaps `more` after them."""
        self._expected, self._more = self._expected + count, more
        self._look()

    def expect_again(self) -> None:
        """Expect one of the earlier trajectories once more."""
        self.expect(1, self._more)

    async def keep(self, trajectory: Trajectory, table: pa.Table) -> bool:
        """Return once an expected trajectory, also given as a table of one row, is on storage and reported; returns whether it
        counts.

        Raises StorageError.
        """
        self._waiting.append((trajectory, table))
        writer = self._writer = self._writer or asyncio.create_task(self._write())
        self._expected -= 1
        self._look()
        return trajectory.id not in await asyncio.shield(writer)

    def _look(self) -> None:
        if self._expected or self._more:
            self._all.clear()
        else:
            self._all.set()

    async def _write(self) -> Collection[str]:
        try:
            async with asyncio.timeout(EVERY_S):
                await self._all.wait()
        except TimeoutError:
            pass
        kept, self._waiting, self._writer = self._waiting, [], None
        tables = pa.concat_tables([table for _, table in kept])
        key, digest = await asyncio.to_thread(write, self._storage, self._folder, tables)
        return await self._written(index_of([trajectory for trajectory, _ in kept], key, digest))


def write(storage: Storage, folder: str, trajectories: pa.Table) -> tuple[str, str]:
    """Write a chunk below `folder`; returns its key and its SHA-256."""
    data = encode(trajectories)
    key = chunk(folder, sha256(data))
    return key, storage.write_bytes(key, data)


def copied(index: pa.Table, storage: Storage, folder: str) -> pa.Table:
    """Copy trajectories into a chunk below `folder`. Returns the rows of its index, see `with_tokens`."""
    table = joined(index, storage.read_table)
    made = from_table(table)
    return with_tokens(index_of(made, *write(storage, folder, table)), made)


def with_tokens(index: pa.Table, made: Sequence[Trajectory]) -> pa.Table:
    """Return the index of trajectories with the column `tokens`: how many of them each of its `versions` sampled."""
    rows = []
    for trajectory, versions in zip(made, index["versions"].to_pylist(), strict=True):
        counts = Counter[str]()
        for node in trajectory.sampled():
            counts[node.weights_version] += len(node.token_ids)
        rows.append([counts[version] for version in versions])
    return index.append_column("tokens", pa.array(rows, pa.list_(pa.int64())))


def storable(trajectory: Trajectory) -> pa.Table:
    """Return the trajectory as a table of one row. Raises ValueError where it holds what cannot be stored."""
    return to_table([trajectory])


def found_in(storage: Storage, keys: Iterable[str], ids: Collection[str] | None) -> tuple[pa.Table, list[str]]:
    """Return the index of those trajectories, or all, in these chunks that did not fail; and damaged chunks, as addresses.

    Of one that several attempts finished, the first by the order of the keys is taken.
    """
    index, damaged = attempts_in(storage, keys)
    return finished_of(index, ids), damaged


def attempts_in(storage: Storage, keys: Iterable[str]) -> tuple[pa.Table, list[str]]:
    """Return the index of all trajectories in these chunks, in the order of the keys; and damaged chunks, as addresses."""
    indexes, damaged = [SCHEMA.empty_table()], []
    with ThreadPoolExecutor(PARALLEL) as pool:
        for key, index in zip(sorted(keys), pool.map(partial(_index, storage), sorted(keys)), strict=True):
            if index is None:
                damaged.append(storage.uri(key))
            else:
                indexes.append(index)
    return pa.concat_tables(indexes), damaged


def _index(storage: Storage, key: str) -> pa.Table | None:
    """Return the index of a chunk, without rows if another process deleted it in the meantime; None if it is damaged."""
    digest = key.rpartition("/")[2].partition(".")[0]
    try:
        return index_of(from_table(storage.read_table(key, digest)), key, digest)
    except (DamagedError, ValidationError):
        return None
    except MissingError:
        return SCHEMA.empty_table()
