"""Tables from files of one's own: a file, a folder or a pattern of files, or a data set that the package datasets saved."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from nbrl.infra.arrow_files import read_ipc, read_parquet
from nbrl.infra.manifest import file_sha256
from nbrl.infra.parse import json_value
from nbrl.infra.storage import sha256
from nbrl.tasks.environments.addresses import on_disk
from nbrl.tasks.environments.csv_table import ZIPPED, csv_table, kind_of
from nbrl.tasks.environments.json_table import Convert, Number, json_table, objects
from nbrl.tasks.errors import ConfigError

JSON = (".jsonl", ".ndjson", ".json")
SUFFIXES = (".parquet", *JSON, ".csv", ".tsv", ".arrow")
SHOWN = f"{', '.join(SUFFIXES)}, or one of the text formats with {' or '.join(ZIPPED)} after it"
SAVED = ("dataset_info.json", "state.json")  # in a folder that `save_to_disk` of datasets wrote
SEVERAL = "dataset_dict.json"  # in one of several such folders
_SPLIT = re.compile(r"(?:^|[-_. ])(train|training|test|testing|val|valid|validation|dev|eval)(?=[-_. ])", re.IGNORECASE)


class _TableRow(dict[str, Any]):
    """A row of JSON. A column that only other rows have is None in it, and takes no space."""

    def __init__(self, values: Mapping[str, Any], names: Collection[str]) -> None:
        super().__init__(values)
        self._names = names

    def __missing__(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(name)


def plain(value: Any) -> Any:
    """Return a value with its numbers as numbers."""
    match value:
        case Number():
            return json_value(value)
        case list():
            return [plain(each) for each in value]
        case dict():
            return {name: plain(each) for name, each in value.items()}
    return value


def read_table(path: Path, key: str, converts: Mapping[str, Convert]) -> pa.Table:
    """Return the table of all rows, at least one. Values of JSON are as `converts` makes them.

    Columns that nothing in `converts` names are not read: they are there, and empty. `key` is the place of the setting, for
    errors. Raises ConfigError if there is no such file, or it is not what it must be.
    """
    table = _joined([_read(file, converts) for file in files_of(path, key)], path)
    if not len(table):
        raise ConfigError(f"data file {path} has no rows")
    if len(set(table.column_names)) < len(table.column_names):
        raise ConfigError(f"data file {path} has two columns of one name; rename one")
    return table


def read_rows(given: Path | str) -> list[dict[str, Any]]:
    """Return the rows, with values of any shape where it is JSON; `row[name]` of what a row lacks is None. Raises ConfigError."""
    rows: list[dict[str, Any]] = []
    names = set[str]()
    with on_disk(given, "data", SUFFIXES) as path:
        for file in files_of(path, "data"):
            if kind_of(file) in JSON:
                with _reading(file):
                    rows += [_TableRow(row, names) for _, row in objects(file)]
            else:
                rows += [_TableRow(row, names) for row in _read(file, None).to_pylist()]
    if not rows:
        raise ConfigError(f"data file {given} has no rows")
    names.update(name for row in rows for name in row)
    return rows


def files_of(path: Path, key: str) -> list[Path]:
    """Return the files that a path means, in their order: itself, a folder's, or those of a pattern such as train-*.parquet."""
    if path.is_file():
        return [path]
    if path.is_dir():
        return _in_folder(path)
    signs = [place for place, part in enumerate(path.parts) if any(sign in part for sign in "*?[")]
    if signs:
        base, pattern = Path(*path.parts[: signs[0]]), str(Path(*path.parts[signs[0] :]))
        if files := sorted(each for each in base.glob(pattern) if each.is_file() and not _hidden(each)):
            return files
    raise ConfigError(f"data file {path} does not exist; set what names it in {key} to a file of your own")


def data_digest(given: Path | str, key: str) -> str:
    """Return the SHA-256 of the file that is meant; of several, that of theirs in their order. Raises ConfigError."""
    with on_disk(given, key, SUFFIXES) as path:
        digests = [file_sha256(file) for file in files_of(path, key)]
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode())


def is_text(path: Path, key: str) -> bool:
    """Return whether all that the path means is text without types: CSV or TSV."""
    return all(kind_of(each) in (".csv", ".tsv") for each in files_of(path, key))


def _in_folder(path: Path) -> list[Path]:
    if (path / SEVERAL).is_file():
        splits = sorted(each.name for each in path.iterdir() if (each / SAVED[1]).is_file())
        shown = ", ".join(splits) or f"as its {SEVERAL} says"  # of a folder at an address, its own files alone are here
        raise ConfigError(f"{path} has several splits, {shown}; name the folder of one, such as {path / [*splits, 'train'][0]}")
    if all((path / name).is_file() for name in SAVED):
        with _reading(path):
            names = [each["filename"] for each in json_value((path / SAVED[1]).read_text())["_data_files"]]
        for name in names:
            if not isinstance(name, str) or Path(name).name != name or not (path / name).is_file():
                raise ConfigError(f"{path / SAVED[1]} names {str(name)[:80]!r}, which is no file of its folder; save it again")
        return [path / name for name in names]
    files = sorted(each for each in path.iterdir() if each.is_file() and kind_of(each) in SUFFIXES and not _hidden(each))
    if len(named := {match[1].lower() for each in files if (match := _SPLIT.search(each.name))}) > 1:
        raise ConfigError(
            f"{path} has files of several splits, {', '.join(sorted(named))}; name the files of one, by a pattern too"
        )
    kinds = sorted({kind_of(each) for each in files})
    if len(kinds) != 1:
        held = f"holds files of several formats, {', '.join(kinds)}" if kinds else f"holds no file that ends in {SHOWN}"
        raise ConfigError(f"the folder {path} {held}; name one file, or a pattern such as {path}/*.parquet")
    return files


def _hidden(path: Path) -> bool:
    """Return whether it is left by a program, such as a copy under way; a folder or a pattern does not mean it."""
    return path.name.startswith(".")


def _joined(tables: Sequence[pa.Table], path: Path) -> pa.Table:
    try:
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise ConfigError(f"the files of {path} have columns that do not go together: {error}; make them alike") from error


def _read(path: Path, converts: Mapping[str, Convert] | None) -> pa.Table:
    with _reading(path):
        match kind_of(path):
            case ".jsonl" | ".ndjson" | ".json":
                return json_table(path, converts or {})
            case ".csv":
                return csv_table(path, ",")
            case ".tsv":
                return csv_table(path, "\t")
            case ".arrow":
                return _arrow_table(path, converts)
            case ".parquet" | "":
                return _parquet_table(path, converts)
        raise ValueError(f"its name ends in {path.suffix}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise a reader's exceptions as ConfigError."""
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
    """Return the table of the stream that datasets writes, or of a file of Feather."""
    table = read_ipc(path)
    return _whole(table.column_names, used, table.select, len(table))


def _whole(names: list[str], used: Collection[str] | None, read: Callable[[list[str]], pa.Table], rows: int) -> pa.Table:
    """Return all columns, of which those that are not used are empty and not read."""
    if used is None or len(set(names)) < len(names):
        return read(names)
    table = read([name for name in names if name in used])
    return pa.table({name: table[name] if name in used else pa.nulls(rows) for name in names})
