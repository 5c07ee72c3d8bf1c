"""A table that lies in parts: an index, itself a small table, says where each row is."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from nbrl.infra.manifest import PARALLEL

if TYPE_CHECKING:
    import pyarrow as pa

INDEX = ".index.parquet"  # how the key of an index ends
PART, DIGEST, ROW = "part", "sha256", "row"  # its columns: the key of a table, the SHA-256 of its bytes, the number of a row


def parts_of(index: "pa.Table") -> dict[str, str]:
    """SHA-256 of each part by its key, in the order in which the index names them first."""
    return dict(zip(index[PART].to_pylist(), index[DIGEST].to_pylist(), strict=True))


def joined(index: "pa.Table", read: Callable[[str, str], "pa.Table"]) -> "pa.Table":
    """The rows that the index names, in its order; `read(key, digest)` reads a part. An index that names none has no columns."""
    import pyarrow as pa

    digests = parts_of(index)
    with ThreadPoolExecutor(PARALLEL) as pool:
        tables = list(pool.map(read, digests.keys(), digests.values()))
    if not tables:
        return pa.table({})
    begins = dict(zip(digests, itertools.accumulate((len(table) for table in tables), initial=0), strict=False))
    places = [begins[part] + row for part, row in zip(index[PART].to_pylist(), index[ROW].to_pylist(), strict=True)]
    return pa.concat_tables(tables, promote_options="default").take(pa.array(places, pa.int64()))
