"""Questions and passages from files of one's own: Parquet, JSON lines, a JSON list, CSV or TSV, with columns of any name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from nbrl.tasks.environments.questions import CORPUS_SCHEMA, SCHEMA, check
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.reward.rules.rule import Rule

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
# What a file may leave out; the others must be there.
OPTIONAL = ("id", "ability", "source", "rule")


def read_questions(path: Path, columns: Mapping[str, str], rule: Rule) -> pa.Table:
    """The questions of a file as a table of SCHEMA; `columns` names the file's columns for ours.

    A file without ids gets some from its name and its rows, one without abilities the ability `qa`, one without rules `rule`.
    Raises ConfigError when the file is missing or not what it must be.
    """
    path = path.absolute()
    table = _read(path)
    for ours, theirs in columns.items():
        if theirs not in table.column_names:
            hint = did_you_mean(theirs, table.column_names)
            raise ConfigError(f"data file {path} has no column {theirs!r}, which data.columns.{ours} names; {hint}")
    rows = len(table)
    made = {
        "id": lambda: pa.array([f"{_name(path)}-{row:06d}" for row in range(rows)], pa.string()),
        "ability": lambda: pa.array(["qa"] * rows, pa.string()),
        "source": lambda: pa.array([_name(path)] * rows, pa.string()),
        "rule": lambda: pa.array([rule] * rows, pa.string()),
        "reference": lambda: pa.array([""] * rows, pa.string()),
    }
    found = {}
    for field in SCHEMA:
        theirs = columns.get(field.name, field.name)
        empty = field.name == "rule" and theirs in table.column_names and table[theirs].null_count == rows
        if field.name == "reference" or (field.name in OPTIONAL and (theirs not in table.column_names or empty)):
            found[field.name] = made[field.name]()
        else:
            found[field.name] = _column(path, table, theirs, field)
    questions = pa.table(found, schema=SCHEMA)
    for name in questions["rule"].unique().to_pylist():
        if name not in get_args(Rule):
            raise ConfigError(f"data file {path} has the rule {name!r}; {did_you_mean(name, get_args(Rule))}")
    check(questions, f"data file {path}")
    return questions


def read_passages(path: Path) -> pa.Table:
    """The passages of a file, in its column `passage`. Raises ConfigError."""
    path = path.absolute()
    (field,) = CORPUS_SCHEMA
    return pa.table({field.name: _column(path, _read(path), field.name, field)}, schema=CORPUS_SCHEMA)


def _name(path: Path) -> str:
    """The file's name as a part of ids."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in path.stem)[:80] or "file"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A file's rows, with values of any shape where it is a JSON list. Raises ConfigError."""
    if path.suffix.lower() != ".json":
        return _read(path).to_pylist()
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"data file {path} cannot be read: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"data file {path} is no list of objects with named values")
    return rows


def _read(path: Path) -> pa.Table:
    """A file as a table with at least one row."""
    if not path.is_file():
        raise ConfigError(f"data file {path} does not exist; set data.train, data.held_out and data.corpus to files of your own")
    try:
        match path.suffix.lower():
            case ".jsonl" | ".ndjson":
                table = pa.json.read_json(path)
            case ".json":
                table = pa.Table.from_pylist(json.loads(path.read_text(encoding="utf-8")))
            case ".csv":
                table = pa.csv.read_csv(path, parse_options=pa.csv.ParseOptions(newlines_in_values=True))
            case ".tsv":
                table = pa.csv.read_csv(path, parse_options=pa.csv.ParseOptions(delimiter="\t", newlines_in_values=True))
            case _:
                table = pq.read_table(path)
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
    if not len(table):
        raise ConfigError(f"data file {path} has no rows")
    if len(set(table.column_names)) < len(table.column_names):
        raise ConfigError(f"data file {path} has two columns of one name; rename one")
    return table


def _column(path: Path, table: pa.Table, name: str, field: pa.Field) -> pa.ChunkedArray:
    """The file's column `name` as our `field`; a single value where a list is needed becomes a list of one."""
    if name not in table.column_names:
        hint = did_you_mean(name, table.column_names)
        raise ConfigError(f"data file {path} lacks the column {field.name!r}; {hint} data.columns.{field.name} names it")
    found = table[name]
    if found.null_count:
        raise ConfigError(f"data file {path}: {found.null_count} rows have no {name!r}; fill it or leave them out")
    try:
        if pa.types.is_list(field.type) and not pa.types.is_nested(found.type):
            return pa.chunked_array([pa.array([[value] for value in found.cast(pa.string()).to_pylist()], field.type)])
        return found.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"data file {path}: the column {name!r} is {found.type} where {field.type} is needed") from error
