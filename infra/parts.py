"""A table that lies in parts: an index, itself a small table, says where each row is."""

import itertools
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nbrl.infra.errors import DamagedError
from nbrl.infra.manifest import PARALLEL

if TYPE_CHECKING:
    import pyarrow as pa

INDEX = ".index.parquet"  # how the key of an index ends
TAKEN_BYTES = 1 << 30  # `take` makes one array of each column, whose offsets end at 2 GiB
PART, DIGEST, ROW = "part", "sha256", "row"  # its columns: the key of a table, the SHA-256 of its bytes, the number of a row


def parts_of(index: "pa.Table") -> dict[str, str]:
    """Return the SHA-256 of each part by its key, in the order in which the index names them first."""
    return dict(zip(index[PART].to_pylist(), index[DIGEST].to_pylist(), strict=True))


def taken(table: "pa.Table", places: Sequence[int]) -> "pa.Table":
    """Return the rows at these places. `pa.array` would import pandas first, to see whether what it is given is of it."""
    import pyarrow as pa

    return table.take(pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(array("q", places))]))


def joined(index: "pa.Table", read: Callable[[str, str], "pa.Table"]) -> "pa.Table":
    """Return the rows that the index names, in its order; `read(key, digest)` reads a part. An empty index has no columns."""
    import pyarrow as pa

    if lacking := {PART, DIGEST, ROW} - set(index.column_names):
        raise DamagedError(f"an index of a table in parts lacks {', '.join(sorted(lacking))}; bring it back from a copy")
    digests = parts_of(index)
    with ThreadPoolExecutor(PARALLEL) as pool:
        tables = list(pool.map(read, digests.keys(), digests.values()))
    if not tables:
        return pa.table({})
    lengths = {part: len(table) for part, table in zip(digests, tables, strict=True)}
    begins = dict(zip(digests, itertools.accumulate(lengths.values(), initial=0), strict=False))
    places = []
    for part, row in zip(index[PART].to_pylist(), index[ROW].to_pylist(), strict=True):
        if not 0 <= row < lengths[part]:
            raise DamagedError(f"an index names row {row} of {part}, which has {lengths[part]} rows; bring it back from a copy")
        places.append(begins[part] + row)
    whole = pa.concat_tables(tables, promote_options="default")
    if whole.nbytes < TAKEN_BYTES:
        return taken(whole, places)
    return pa.concat_tables([whole.slice(place, 1) for place in places])
