"""Reads CSV, and text of any character set."""

import gzip
import io
import re
from codecs import BOM_UTF8, getincrementaldecoder
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv

from nbrl.tasks.errors import ConfigError

ZIPPED = (".gz", ".zst")
TEXT_BYTES = 4 << 30  # of a file of text that is read whole, or unpacked
LONGEST_FIELD = 1 << 30  # bytes that are read at once
_HEAD = 1 << 16
_WHOLE = re.compile(r"-?\d+\.0")


def kind_of(path: Path) -> str:
    """Return the suffix that says the format."""
    return (path.with_suffix("") if is_zipped(path) else path).suffix.lower()


def opened(path: Path) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path, "rb")  # type: ignore[return-value]
        case ".zst":
            return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def is_zipped(path: Path) -> bool:
    return path.suffix.lower() in ZIPPED


def contents(path: Path) -> bytes:
    """Return the content of a file of text, unpacked. Raises ConfigError for more than TEXT_BYTES."""
    parts, left = list[bytes](), TEXT_BYTES
    with opened(path) as file:
        while part := file.read(1 << 20):  # asked for a gigabyte at once, it would make room for one
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise too_long(path)
    return b"".join(parts)


def too_long(path: Path) -> ConfigError:
    unpacked = " unpacked" if is_zipped(path) else ""
    return ConfigError(f"data file {path} has more than {TEXT_BYTES >> 20} MB{unpacked}; cut it into several files")


def csv_table(path: Path, delimiter: str) -> pa.Table:
    """Return the table, whose fields are text as written: 00501 is no number, and NA is a word. An empty one is null."""
    data = contents(path)
    getincrementaldecoder("utf-8")().decode(data[:_HEAD])  # else UTF-16 is said to be no CSV
    header = data[:_HEAD].partition(b"\n")[0].decode("utf-8", "replace")
    if delimiter not in header and (other := next((sign for sign in ";\t|," if sign in header), None)):
        raise ValueError(f"its columns are apart by {other!r}, where {delimiter!r} is expected")
    _check_quotes(path, data, delimiter)
    return pa.csv.read_csv(
        pa.BufferReader(data),
        read_options=pa.csv.ReadOptions(block_size=max(1 << 20, min(len(data) + 1, LONGEST_FIELD))),
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(default_column_type=pa.string(), null_values=[""], strings_can_be_null=True),
    )


def _check_quotes(path: Path, data: bytes, delimiter: str) -> None:
    """Raises ConfigError with the line of the first quote that opens a field and that no quote at the field's end closes.

    The reader would take what follows, further rows too, as a part of that field.
    """
    ends = rb"%s\r\n" % delimiter.encode()
    fields = re.compile(rb'(?:\A(?:%s)?|(?<=[%s]))"(?:[^"]++|"")*+("(?=[%s]|\Z))?' % (BOM_UTF8, ends, ends))
    wrong = next((field for field in fields.finditer(data) if field[1] is None), None)
    if wrong:
        line = len(data[: wrong.start() + 1].splitlines())
        remedy = "put such a field in quotes, and write each quote in it twice"
        raise ConfigError(f"data file {path}, line {line}: the quote that opens a field is not closed at its end; {remedy}")


def whole_texts(found: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts that all end in .0 without it: some programs write whole numbers as floats."""
    texts = found.to_pylist()
    given = [each for each in texts if each]
    if not given or not all(_WHOLE.fullmatch(each) for each in given):
        return found
    return pa.chunked_array([pa.array([each and each.removesuffix(".0") for each in texts], pa.string())])
