"""Reads tables of Parquet and of Arrow that others may have made: of plain types, whole, and not larger than memory.

Ray registers a type of Arrow's whose values are pickles, and reading them would run what they name.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.infra.errors import DamagedError
from nbrl.infra.manifest import PARALLEL

if TYPE_CHECKING:
    import pyarrow as pa


MOST_ROWS = 20_000_000
LARGEST = 4 << 30  # bytes of a table in memory, and of a file
BATCH = 256 << 20  # bytes, about, of the rows that are unpacked at once


INDEX = ".index.parquet"  # how the key of an index ends
TAKEN_BYTES = 1 << 30  # `take` makes one array of each column, whose offsets end at 2 GiB
PART, DIGEST, ROW = "part", "sha256", "row"  # its columns: the key of a table, the SHA-256 of its bytes, the number of a row


class UnfitTableError(ValueError):
    """It is no table of plain values, or a larger one than any of nbrl's."""


def read_parquet(source: Path | IO[bytes], columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table, or some of its columns, where no name is there twice. Raises UnfitTableError, and what pyarrow raises."""
    if isinstance(source, Path) and source.stat().st_size > LARGEST:
        raise UnfitTableError(f"it has more than {LARGEST >> 30} GB")
    with pq.ParquetFile(source) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        check_plain(schema)
        if rows > MOST_ROWS:
            raise UnfitTableError(f"it has {rows} rows, where {MOST_ROWS} are allowed")
        if columns is not None:
            columns = [name for name in columns if name in schema.names]
        value = _largest_value(file.metadata)
        if rows * value * max(1, file.metadata.num_columns) <= LARGEST:
            return file.read(columns=columns)
        # A value that stands once in a file may be in each row: so not all are unpacked at once.
        batches, size = list[pa.RecordBatch](), 0
        for batch in file.iter_batches(batch_size=min(rows, max(16, BATCH // value)), columns=columns):
            batches.append(batch)
            size += batch.nbytes
            if size > LARGEST:
                raise UnfitTableError(f"it takes more than {LARGEST >> 30} GB of memory")
        if not batches:
            return file.read(columns=columns)
        return pa.Table.from_batches(batches).combine_chunks()


def read_ipc(path: Path) -> pa.Table:
    """Return the table of a stream, as datasets writes it, or of a file of Feather. Raises as `read_parquet`."""
    if path.stat().st_size > LARGEST:
        raise UnfitTableError(f"it has more than {LARGEST >> 30} GB")
    with pa.memory_map(str(path)) as source:
        try:
            table = pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            table = pa.ipc.open_file(source).read_all()
        check_plain(table.schema)
        table.validate(full=True)  # offsets that lead out of the file would end this process
        return table


def check_plain(schema: pa.Schema) -> None:
    """Raises UnfitTableError for a column of a type that is not Arrow's own."""
    for field in schema:
        if not _is_plain(field.type):
            raise UnfitTableError(f"its column {field.name[:80]!r} is of a type of another program; write plain values")


def _is_plain(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return False
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    return all(_is_plain(kind.field(place).type) for place in range(kind.num_fields))


def _largest_value(metadata: pq.FileMetaData) -> int:
    """Bytes that no value has more of: a value lies in one chunk of a column."""
    chunks = (
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )
    return max(1, max(chunks, default=1))


def parts_of(index: "pa.Table") -> dict[str, str]:
    """SHA-256 of each part by its key, in the order in which the index names them first."""
    return dict(zip(index[PART].to_pylist(), index[DIGEST].to_pylist(), strict=True))


def joined(index: "pa.Table", read: Callable[[str, str], "pa.Table"]) -> "pa.Table":
    """Return the rows that the index names, in its order; `read(key, digest)` reads a part. An index that names none has no
    columns.
    """
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
        return whole.take(pa.array(places, pa.int64()))
    return pa.concat_tables([whole.slice(place, 1) for place in places])
