"""Reads tables of Parquet and of Arrow that may be hostile: of plain types, whole, and not larger than memory.

Ray registers a type of Arrow's whose values are pickles, and reading them would run what they name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pyarrow as pa


MOST_ROWS = 20_000_000
LARGEST = 4 << 30  # bytes of a table in memory, and of a file
BATCH = 256 << 20  # bytes, about, of the rows that are unpacked at once


class UnfitTableError(ValueError):
    """A file is no table of plain values, or larger than any table of nbrl's."""


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
        # A value that is once in a file may be in each row: so not all are unpacked at once.
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
    """Return a number of bytes that no value has more of: a value lies in one chunk of a column."""
    chunks = (
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )
    return max(1, max(chunks, default=1))
