"""Reads tables of Parquet and of Arrow that may be hostile: of plain types, whole, and not larger than memory. Sizes that a file
names bound nothing, nor does its own size: one read from a path has a limit, and audits limit all that they read.

Ray registers a type of Arrow's whose values are pickles, and reading them would run what they name.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.infra.process.memory import memory_limited

MOST_ROWS = 20_000_000
LARGEST = 4 << 30  # bytes of a table in memory, and of a file
BUFFERS = 512 << 20  # bytes that reading takes besides
BATCH = 256 << 20  # bytes, about, of the rows that are unpacked at once


class UnfitTableError(ValueError):
    """A file is no table of plain values, or larger than any table of nbrl's."""


def read_parquet(source: Path | IO[bytes], columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table, or some of its columns, where no name is there twice. Raises UnfitTableError, and what pyarrow raises."""
    if not isinstance(source, Path):
        return _parquet(source, columns)
    with _limited(source):
        return _parquet(source, columns)


def _parquet(source: Path | IO[bytes], columns: Sequence[str] | None) -> pa.Table:
    with pq.ParquetFile(source) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        check_plain(schema)
        if rows > MOST_ROWS:
            raise UnfitTableError(f"it has {rows} rows, where {MOST_ROWS} are allowed")
        if columns is not None:
            columns = [name for name in columns if name in schema.names]
        row = _largest_value(file.metadata) * max(1, file.metadata.num_columns)
        if rows * row <= LARGEST:
            return file.read(columns=columns)
        # A value that is once in a file may be in each row: so not all are unpacked at once.
        batches, size = list[pa.RecordBatch](), 0
        for batch in file.iter_batches(batch_size=min(rows, max(1, BATCH // row)), columns=columns):
            batches.append(batch)
            size += batch.nbytes
            if size > LARGEST:
                raise UnfitTableError(f"it takes more than {LARGEST >> 30} GB of memory")
        if not batches:
            return file.read(columns=columns)
        return pa.Table.from_batches(batches).combine_chunks()


def read_ipc(path: Path) -> pa.Table:
    """Return the table of a stream, as datasets writes it, or of a file of Feather. Raises as `read_parquet`."""
    with _limited(path):
        return _ipc(path)


def _ipc(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        try:
            table = pa.ipc.open_stream(source).read_all()
        except pa.ArrowInvalid:
            table = pa.ipc.open_file(source).read_all()
        check_plain(table.schema)
        table.validate(full=True)  # offsets that lead out of the file would end this process
        return table


@contextmanager
def _limited(path: Path) -> Iterator[None]:
    """Limit the memory of what the body makes of a file that comes from elsewhere, and may lie about its sizes."""
    if path.stat().st_size > LARGEST:
        raise UnfitTableError(f"it has more than {LARGEST >> 30} GB")
    try:
        with memory_limited(LARGEST + BUFFERS):
            yield
    except MemoryError as error:
        raise UnfitTableError(f"it takes more than {LARGEST >> 30} GB of memory") from error


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
