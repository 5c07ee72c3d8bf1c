"""Questions and passages from files of one's own: Parquet, JSON lines, a JSON list, CSV or TSV, with columns of any name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from nbrl.tasks.environments.attachments import attached_column, expected_columns
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, SCHEMA, check
from nbrl.tasks.environments.tested import TESTED, tested_column
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.reward.rules.rule import CODE, FILES, RULES, Rule

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
# What a file may leave out; the others must be there.
OPTIONAL = ("id", "ability", "source", "rule", "files")
EXPECTED = "expected"  # paths of the files that the agent has to make, for the rule files
# What is never taken from a file.
OURS = ("reference", "environment", "collect")
MAPPED = (*(name for name in SCHEMA.names if name not in OURS), EXPECTED, *TESTED)


def read_questions(
    path: Path, columns: Mapping[str, str], rule: Rule, key: str = "data", attached: dict[str, Path] | None = None
) -> pa.Table:
    """The questions of a file as a table of SCHEMA; `columns` names the file's columns for ours.

    A file without ids gets some from its name and its rows, one without abilities the ability `qa`, one without rules `rule`.
    `key` is where the settings stand, for errors; the files that questions come with are added to `attached` by their digest.
    Raises ConfigError when the file is missing or not what it must be.
    """
    path = path.absolute()
    return questions_of(_read(path, key), f"data file {path}", _name(path), columns, rule, key, path.parent, attached)


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
    return pa.table({field.name: _column(f"data file {path}", _read(path, key), field.name, field, key)}, schema=CORPUS_SCHEMA)


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


def _read(path: Path, key: str = "data") -> pa.Table:
    """A file as a table with at least one row."""
    if not path.is_file():
        raise ConfigError(f"data file {path} does not exist; set what names it in {key} to a file of your own")
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
