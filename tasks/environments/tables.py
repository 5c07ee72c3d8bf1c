"""Tables from files of one's own: a file, a folder or a pattern of files, or a data set that the package datasets saved."""

import gzip
import json
import math
import re
from bisect import bisect_left
from codecs import BOM_UTF8, getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from nbrl.infra.arrow_files import read_ipc, read_parquet
from nbrl.infra.parse import json_value
from nbrl.tasks.errors import ConfigError

JSON = (".jsonl", ".ndjson", ".json")
ZIPPED = ".gz"
SUFFIXES = (".parquet", *JSON, ".csv", ".tsv", ".arrow")
SHOWN = f"{', '.join(SUFFIXES)}, or one of the text formats with {ZIPPED} after it"
SAVED = ("dataset_info.json", "state.json")  # in a folder that `save_to_disk` of datasets wrote
SEVERAL = "dataset_dict.json"  # in one of several such folders
_HEAD = 1 << 16
_WHOLE = re.compile(r"-?\d+\.0")
_SPLIT = re.compile(r"(?:^|[-_. ])(train|training|test|testing|val|valid|validation|dev|eval)(?=[-_. ])", re.IGNORECASE)
LONGEST_FIELD = 1 << 30  # bytes of CSV that are read at once
TEXT_BYTES = 4 << 30  # of a file of text that is read whole, or unpacked
LINE_BYTES = 1 << 27  # of a line of JSON
MOST_NAMES = 10_000  # of columns in a file of JSON
SPARSE, DENSITY = 1 << 22, 20  # members that structures of a column may have in all, and how many for each that is given

Convert = Callable[[Any], Any]


class Number(str):
    """A number of JSON, as it is written."""


class _Row(dict[str, Any]):
    """A row of JSON. A column that only other rows have is None in it, and takes no space."""

    def __init__(self, values: Mapping[str, Any], names: Collection[str]) -> None:
        super().__init__(values)
        self._names = names

    def __missing__(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(name)


def plain(value: Any) -> Any:
    """A value with its numbers as numbers."""
    match value:
        case Number():
            return json_value(value)
        case list():
            return [plain(each) for each in value]
        case dict():
            return {name: plain(each) for name, each in value.items()}
    return value


def read_table(path: Path, key: str, converts: Mapping[str, Convert]) -> pa.Table:
    """The table of all rows, at least one. Values of JSON are as `converts` makes them.

    Columns that nothing in `converts` names are not read: they are there, and empty. `key` is where the setting stands, for
    errors. Raises ConfigError if there is no such file, or it is not what it must be.
    """
    table = _joined([_read(file, converts) for file in files_of(path, key)], path)
    if not len(table):
        raise ConfigError(f"data file {path} has no rows")
    if len(set(table.column_names)) < len(table.column_names):
        raise ConfigError(f"data file {path} has two columns of one name; rename one")
    return table


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows, with values of any shape where it is JSON; `row[name]` of what a row lacks is None. Raises ConfigError."""
    rows: list[dict[str, Any]] = []
    names = set[str]()
    for file in files_of(path, "data"):
        if _kind(file) in JSON:
            with _reading(file):
                rows += [_Row(row, names) for _, row in _objects(file)]
        else:
            rows += [_Row(row, names) for row in _read(file, None).to_pylist()]
    if not rows:
        raise ConfigError(f"data file {path} has no rows")
    names.update(name for row in rows for name in row)
    return rows


def files_of(path: Path, key: str) -> list[Path]:
    """The files that a path means, in their order: itself, those in a folder, or those of a pattern such as train-*.parquet."""
    if path.is_file():
        return [path]
    if path.is_dir():
        return _in_folder(path)
    signs = [place for place, part in enumerate(path.parts) if any(sign in part for sign in "*?[")]
    if signs:
        base, pattern = Path(*path.parts[: signs[0]]), str(Path(*path.parts[signs[0] :]))
        if found := sorted(each for each in base.glob(pattern) if each.is_file() and not _hidden(each)):
            return found
    raise ConfigError(f"data file {path} does not exist; set what names it in {key} to a file of your own")


def is_text(path: Path, key: str) -> bool:
    """Whether all that the path means is text without types: CSV or TSV."""
    return all(_kind(each) in (".csv", ".tsv") for each in files_of(path, key))


def _in_folder(path: Path) -> list[Path]:
    if (path / SEVERAL).is_file():
        splits = sorted(each.name for each in path.iterdir() if (each / SAVED[1]).is_file())
        raise ConfigError(f"{path} has several splits, {', '.join(splits)}; name the folder of one, such as {path / splits[0]}")
    if all((path / name).is_file() for name in SAVED):
        with _reading(path):
            names = [each["filename"] for each in json_value((path / SAVED[1]).read_text())["_data_files"]]
        for name in names:
            if not isinstance(name, str) or Path(name).name != name or not (path / name).is_file():
                raise ConfigError(f"{path / SAVED[1]} names {str(name)[:80]!r}, which is no file of its folder; save it again")
        return [path / name for name in names]
    files = sorted(each for each in path.iterdir() if each.is_file() and _kind(each) in SUFFIXES and not _hidden(each))
    if len(named := {found[1].lower() for each in files if (found := _SPLIT.search(each.name))}) > 1:
        raise ConfigError(
            f"{path} has files of several splits, {', '.join(sorted(named))}; name the files of one, by a pattern too"
        )
    kinds = sorted({_kind(each) for each in files})
    if len(kinds) != 1:
        held = f"holds files of several formats, {', '.join(kinds)}" if kinds else f"holds no file that ends in {SHOWN}"
        raise ConfigError(f"the folder {path} {held}; name one file, or a pattern such as {path}/*.parquet")
    return files


def _hidden(path: Path) -> bool:
    """Whether it is left by a program, such as a copy under way; a folder or a pattern does not mean it."""
    return path.name.startswith(".")


def _kind(path: Path) -> str:
    """The suffix that says the format."""
    return (path.with_suffix("") if path.suffix.lower() == ZIPPED else path).suffix.lower()


def _joined(tables: Sequence[pa.Table], path: Path) -> pa.Table:
    try:
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise ConfigError(f"the files of {path} have columns that do not go together: {error}; make them alike") from error


def _read(path: Path, converts: Mapping[str, Convert] | None) -> pa.Table:
    with _reading(path):
        match _kind(path):
            case ".jsonl" | ".ndjson" | ".json":
                return _json_table(path, converts or {})
            case ".csv":
                return _csv_table(path, ",")
            case ".tsv":
                return _csv_table(path, "\t")
            case ".arrow":
                return _arrow_table(path, converts)
            case ".parquet" | "":
                return _parquet_table(path, converts)
        raise ValueError(f"its name ends in {path.suffix}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever a reader raises, as a ConfigError."""
    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        remedy = f"it must be one of {SHOWN}, as its name says"
        if isinstance(error.__cause__ or error, UnicodeDecodeError) or "invalid UTF8" in reason:
            remedy = "save it as UTF-8"
        raise ConfigError(f"data file {path} cannot be read: {reason}; {remedy}") from error


def _parquet_table(path: Path, used: Collection[str] | None) -> pa.Table:
    with pq.ParquetFile(path) as file:
        names, rows = file.schema_arrow.names, file.metadata.num_rows
    return _whole(names, used, lambda names: read_parquet(path, names if len({*names}) == len(names) else None), rows)


def _arrow_table(path: Path, used: Collection[str] | None) -> pa.Table:
    """Of the stream that datasets writes, or of a file of Feather."""
    table = read_ipc(path)
    return _whole(table.column_names, used, table.select, len(table))


def _whole(names: list[str], used: Collection[str] | None, read: Callable[[list[str]], pa.Table], rows: int) -> pa.Table:
    """All columns, of which those that are not used are empty and not read."""
    if used is None or len(set(names)) < len(names):
        return read(names)
    found = read([name for name in names if name in used])
    return pa.table({name: found[name] if name in used else pa.nulls(rows) for name in names})


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if _zipped(path) else path.open("rb")  # type: ignore[return-value]


def _zipped(path: Path) -> bool:
    return path.suffix.lower() == ZIPPED


def _contents(path: Path) -> bytes:
    """What is in a file of text, unpacked. Raises ConfigError where that is more than TEXT_BYTES."""
    parts, left = list[bytes](), TEXT_BYTES
    with _opened(path) as file:
        while part := file.read(1 << 20):  # asked for a gigabyte at once, it would make room for one
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise _too_long(path)
    return b"".join(parts)


def _too_long(path: Path) -> ConfigError:
    unpacked = " unpacked" if _zipped(path) else ""
    return ConfigError(f"data file {path} has more than {TEXT_BYTES >> 20} MB{unpacked}; cut it into several files")


def _csv_table(path: Path, delimiter: str) -> pa.Table:
    """All fields are text, as they are written: 00501 is no number, and NA is a word. An empty one is null."""
    data = _contents(path)
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


def _json_table(path: Path, converts: Mapping[str, Convert]) -> pa.Table:
    """The objects of a file as rows. Values of columns that nothing converts may be of any shape and are left out."""
    columns: dict[str, dict[int, Any]] = {}  # the values that are given, by their rows
    places: list[int] = []
    for place, row in _objects(path, Number):
        for name, value in row.items():
            given = columns.setdefault(name, {})
            if name in converts:
                given[len(places)] = converts[name](value)
        places.append(place)

    def column(name: str, given: dict[int, Any]) -> pa.Array:
        if name not in converts:
            return pa.nulls(len(places))
        _check_dense(name, given.values())
        return _array(path, name, [given.get(row) for row in range(len(places))], places)

    return pa.table({name: column(name, given) for name, given in columns.items()})


def _check_dense(name: str, values: Iterable[Any]) -> None:
    """Raises ValueError where structures have so many names between them that each as a row of all would be almost empty."""
    names, given, structures, left = set[str](), 0, 0, [*values]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            names.update(each)
            given, structures = given + len(each), structures + 1
        if isinstance(each, dict | list):
            left += each.values() if isinstance(each, dict) else each
    if structures * len(names) > max(SPARSE, DENSITY * given):
        raise ValueError(f"the objects in {name!r} have {len(names)} different keys, of which each has few")


def _array(path: Path, name: str, values: list[Any], places: Sequence[int]) -> pa.Array:
    """The values as a column; where some are lists, another is a list of one.

    Raises ValueError with the place of the first that does not go with those before it.
    """
    if any(isinstance(value, list) for value in values):
        values = [[value] if isinstance(value, str | bool | Number) else value for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        row = bisect_left(range(1, len(values)), True, key=lambda count: not _fit(values[:count]))
        raise ValueError(f"{_place(path, places[row])}: {name!r} does not fit into its column: {error}") from error


def _fit(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
        return False
    return True


def _objects(path: Path, number: Callable[[str], Any] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON list or of JSON lines, with places counted from 1; `number` reads numbers. Raises ValueError."""
    decoder = json.JSONDecoder(parse_int=number, parse_float=number, object_pairs_hook=_distinct)
    names = set[str]()
    for place, value in _listed(path, decoder) if _kind(path) == ".json" else _lines(path, decoder):
        if not isinstance(value, dict):
            raise ValueError(f"{_place(path, place)} is no object with named values")
        names.update(value)
        if len(names) > MOST_NAMES:
            raise ValueError(f"its objects have more than {MOST_NAMES} different keys")
        yield place, value


def _listed(path: Path, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    try:
        values = decoder.decode(_contents(path).decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        lines = error.msg == "Extra data"
        raise ValueError(
            "it holds several values; the name of a file of JSON lines ends in .jsonl" if lines else error
        ) from error
    if not isinstance(values, list):
        raise ValueError("it is no list of objects with named values")
    yield from enumerate(values, 1)


def _lines(path: Path, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    with _opened(path) as file:
        left = TEXT_BYTES if _zipped(path) else math.inf  # a file that is not packed has what it takes on the disk
        for place, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), 1):
            left -= len(line)
            if left < 0:
                raise _too_long(path)
            if len(line) > LINE_BYTES:
                raise ValueError(f"line {place} has more than {LINE_BYTES >> 20} MB")
            if not line.strip():
                continue
            try:
                yield place, decoder.decode(line.removeprefix(BOM_UTF8).decode())
            except json.JSONDecodeError as error:
                raise ValueError(f"line {place}, character {error.colno}: {error.msg}") from error
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {place}: {error}") from error


def _place(path: Path, place: int) -> str:
    return f"{'object' if _kind(path) == '.json' else 'line'} {place}"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError if it has a name twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has the name {twice[:80]!r} twice")
    return found


def whole_texts(found: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts that all end in .0 without it: a program that had a column of whole numbers for one of floats wrote them so."""
    texts = found.to_pylist()
    given = [each for each in texts if each]
    if not given or not all(_WHOLE.fullmatch(each) for each in given):
        return found
    return pa.chunked_array([pa.array([each and each.removesuffix(".0") for each in texts], pa.string())])
