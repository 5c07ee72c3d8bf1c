"""Tables of CSV and TSV, whose fields are text as they are written."""

import re
from codecs import BOM_UTF8, getincrementaldecoder
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from nbrl.tasks.environments.text_file import contents
from nbrl.tasks.errors import ConfigError

LONGEST_FIELD = 1 << 30  # bytes that are read at once
_HEAD = 1 << 16
_WHOLE = re.compile(r"-?\d+\.0")


def csv_table(path: Path, delimiter: str) -> pa.Table:
    """All fields are text, as they are written: 00501 is no number, and NA is a word. An empty one is null."""
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
    """Texts that all end in .0 without it: a program that had a column of whole numbers for one of floats wrote them so."""
    texts = found.to_pylist()
    given = [each for each in texts if each]
    if not given or not all(_WHOLE.fullmatch(each) for each in given):
        return found
    return pa.chunked_array([pa.array([each and each.removesuffix(".0") for each in texts], pa.string())])
