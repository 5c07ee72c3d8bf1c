"""Questions and passages from files of one's own: Parquet, JSON lines, a JSON list, CSV or TSV, with columns of any name."""

import json
import re
from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from nbrl.tasks.environments.attachments import attached_column, expected_columns
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, SCHEMA, check
from nbrl.tasks.environments.tested import FETCHED, TESTED, tested_column
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.reward.rules.rule import CODE, FILES, RULES, Rule

JSON = (".jsonl", ".ndjson", ".json")
SUFFIXES = (".parquet", *JSON, ".csv", ".tsv")
# What a file may leave out; the others must be there.
OPTIONAL = ("id", "ability", "source", "rule", "files")
EXPECTED = "expected"  # paths of the files that the agent has to make, for the rule files
# What is never taken from a file.
OURS = ("reference", "environment", "collect")
MAPPED = (*(name for name in SCHEMA.names if name not in OURS), EXPECTED, *TESTED)
# Of these a number is its text.
TEXTS = ("id", "question", "answers", "ability", "source", "rule")
_WHOLE = re.compile(r"(-?\d+)\.0+")

Convert = Callable[[Any], Any]


def read_questions(
    path: Path, columns: Mapping[str, str], rule: Rule, key: str = "data", attached: dict[str, Path] | None = None
) -> pa.Table:
    """The questions of a file as a table of SCHEMA; `columns` names the file's columns for ours.

    A file without ids gets some from its name and its rows, one without abilities the ability `qa`, one without rules `rule`.
    `key` is where the settings stand, for errors; the files that questions come with are added to `attached` by their digest.
    Raises ConfigError when the file is missing or not what it must be.
    """
    path = path.absolute()
    converts: dict[str, Convert] = {columns.get(name, name): _plain for name in (*MAPPED, FETCHED)}
    converts |= {columns.get(name, name): _text for name in TEXTS}
    return questions_of(_read(path, key, converts), f"data file {path}", _name(path), columns, rule, key, path.parent, attached)


def questions_of(
    table: pa.Table,
    where: str,
    name: str,
    columns: Mapping[str, str],
    rule: Rule,
    key: str,
    folder: Path | None = None,
    attached: dict[str, Path] | None = None,
) -> pa.Table:
    """As `read_questions`, of a table from `where`. `name` begins ids that are made; `folder` holds the attached files."""
    for ours, theirs in columns.items():
        if theirs not in table.column_names:
            hint = did_you_mean(theirs, table.column_names)
            raise ConfigError(f"{where} has no column {theirs!r}, which {key}.columns.{ours} names; {hint}")
    rows = len(table)
    made = {
        "id": lambda: pa.array([f"{name}-{row:06d}" for row in range(rows)], pa.string()),
        "ability": lambda: pa.array(["qa"] * rows, pa.string()),
        "source": lambda: pa.array([name] * rows, pa.string()),
        "rule": lambda: pa.array([rule] * rows, pa.string()),
        "answers": lambda: pa.array([[]] * rows, SCHEMA.field("answers").type),
        "files": lambda: pa.array([[]] * rows, SCHEMA.field("files").type),
        "reference": lambda: pa.array([""] * rows, pa.string()),
        "environment": lambda: pa.array([""] * rows, pa.string()),
        "collect": lambda: pa.array([[]] * rows, SCHEMA.field("collect").type),
    }
    expected = columns.get(EXPECTED, EXPECTED)
    ruled = columns.get("rule", "rule")
    rules = [each or rule for each in table[ruled].to_pylist()] if ruled in table.column_names else [rule] * rows
    expects = FILES in rules and expected in table.column_names
    optional = (*OPTIONAL, "answers") if expects or CODE in rules else OPTIONAL
    found = dict[str, Any](expected_columns(where, table[expected].to_pylist(), folder) if expects else {})
    if CODE in rules:
        others = found["reference"].to_pylist() if expects else [""] * rows
        tested = tested_column(where, table, columns, rules)
        found["reference"] = pa.array([one or other for one, other in zip(tested, others, strict=True)], pa.string())
    for field in SCHEMA:
        theirs = columns.get(field.name, field.name)
        empty = field.name == "rule" and theirs in table.column_names and table[theirs].null_count == rows
        if field.name in found:
            continue
        if field.name in OURS or (field.name in optional and (theirs not in table.column_names or empty)):
            found[field.name] = made[field.name]()
        elif field.name == "files":
            found[field.name] = attached_column(where, table[theirs].to_pylist(), folder, {} if attached is None else attached)
        else:
            found[field.name] = _column(where, table, theirs, field, key)
    questions = pa.table({name: found[name] for name in SCHEMA.names}, schema=SCHEMA)
    for found_rule in questions["rule"].unique().to_pylist():
        if found_rule not in RULES:
            raise ConfigError(f"{where} has the rule {found_rule!r}; {did_you_mean(found_rule, RULES)}")
    check(questions, where)
    return questions


def read_passages(path: Path, key: str) -> pa.Table:
    """The passages of a file, in its column `passage`. Raises ConfigError."""
    path = path.absolute()
    (field,) = CORPUS_SCHEMA
    table = _read(path, key, {field.name: _text})
    return pa.table({field.name: _column(f"data file {path}", table, field.name, field, key)}, schema=CORPUS_SCHEMA)


def _name(path: Path) -> str:
    """The file's name as a part of ids."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in path.stem)[:80] or "file"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A file's rows, with values of any shape where it is JSON; what a row lacks is None. Raises ConfigError."""
    if path.suffix.lower() not in JSON:
        return list(_read(path, "data", {}).to_pylist())
    with _reading(path, "data"):
        rows = [row for _, row in _objects(path)]
    if not rows:
        raise ConfigError(f"data file {path} has no rows")
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _read(path: Path, key: str, converts: Mapping[str, Convert]) -> pa.Table:
    """A file as a table with at least one row. Values of JSON are as `converts` makes them; columns that it lacks are empty."""
    with _reading(path, key):
        match path.suffix.lower():
            case ".jsonl" | ".ndjson" | ".json":
                table = _json_table(path, converts)
            case ".csv":
                table = _csv_table(path, ",")
            case ".tsv":
                table = _csv_table(path, "\t")
            case _:
                table = pq.read_table(path)
    if not len(table):
        raise ConfigError(f"data file {path} has no rows")
    if len(set(table.column_names)) < len(table.column_names):
        raise ConfigError(f"data file {path} has two columns of one name; rename one")
    return table


@contextmanager
def _reading(path: Path, key: str) -> Iterator[None]:
    """Whatever a reader raises, as a ConfigError."""
    if not path.is_file():
        raise ConfigError(f"data file {path} does not exist; set what names it in {key} to a file of your own")
    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        kinds = ", ".join(SUFFIXES)
        raise ConfigError(f"data file {path} cannot be read: {reason}; it must be one of {kinds}, as its name says") from error


def _csv_table(path: Path, delimiter: str) -> pa.Table:
    """All fields are text, as they are written: 00501 is no number, and NA is a word. An empty one is null."""
    return pa.csv.read_csv(
        path,
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(default_column_type=pa.string(), null_values=[""], strings_can_be_null=True),
    )


class _Number(str):
    """A number of JSON, as it is written."""


def _text(value: Any) -> Any:
    """A value as text, in a list too: numbers as they are written, but 42.0 is 42, since some rules would read it as 420."""
    match value:
        case bool():
            return json.dumps(value)
        case _Number():
            whole = _WHOLE.fullmatch(value)
            return whole[1] if whole else str(value)
        case float():
            return str(value)
        case list():
            return [_text(each) for each in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    """A value with its numbers as numbers."""
    match value:
        case _Number():
            return json.loads(value)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
    return value


def _json_table(path: Path, converts: Mapping[str, Convert]) -> pa.Table:
    """The objects of a file as rows. Values of columns that nothing converts may be of any shape and are left out."""
    columns: dict[str, list[Any]] = {}
    places: list[int] = []
    for place, row in _objects(path, _Number):
        for name in row:
            if name not in columns:
                columns[name] = [None] * len(places)
        for name, values in columns.items():
            values.append(converts[name](row.get(name)) if name in converts else None)
        places.append(place)
    return pa.table({name: _array(path, name, values, places) for name, values in columns.items()})


def _array(path: Path, name: str, values: list[Any], places: Sequence[int]) -> pa.Array:
    """The values as a column. Raises ValueError with the place of the first that does not go with those before it."""
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
    for place, value in _listed(path, decoder) if path.suffix.lower() == ".json" else _lines(path, decoder):
        if not isinstance(value, dict):
            raise ValueError(f"{_place(path, place)} is no object with named values")
        yield place, value


def _listed(path: Path, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    values = decoder.decode(path.read_text(encoding="utf-8-sig"))
    if not isinstance(values, list):
        raise ValueError("it is no list of objects with named values")
    yield from enumerate(values, 1)


def _lines(path: Path, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for place, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield place, decoder.decode(line.removeprefix(BOM_UTF8).decode())
            except json.JSONDecodeError as error:
                raise ValueError(f"line {place}, character {error.colno}: {error.msg}") from error
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {place}: {error}") from error


def _place(path: Path, place: int) -> str:
    return f"{'object' if path.suffix.lower() == '.json' else 'line'} {place}"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError if it has a name twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"an object has the name {twice[:80]!r} twice")
    return found


def _column(where: str, table: pa.Table, name: str, field: pa.Field, key: str) -> pa.ChunkedArray:
    """The file's column `name` as our `field`; a single value where a list is needed becomes a list of one."""
    if name not in table.column_names:
        hint = did_you_mean(name, table.column_names)
        raise ConfigError(f"{where} lacks the column {field.name!r}; {hint} {key}.columns.{field.name} names it")
    found = table[name]
    if found.null_count:
        raise ConfigError(f"{where}: {found.null_count} rows have no {name!r}; fill it or leave them out")
    try:
        if pa.types.is_list(field.type) and not pa.types.is_nested(found.type):
            return pa.chunked_array([pa.array([[value] for value in found.cast(pa.string()).to_pylist()], field.type)])
        return found.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"{where}: the column {name!r} is {found.type} where {field.type} is needed") from error
