"""Questions and passages from files of one's own: Parquet, JSON lines, a JSON list, CSV or TSV, with columns of any name."""

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.tasks.environments import nested
from nbrl.tasks.environments.addresses import on_disk
from nbrl.tasks.environments.csv_table import whole_texts
from nbrl.tasks.environments.json_table import Convert, Number
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, SCHEMA, attached_column, check, expected_columns
from nbrl.tasks.environments.stored import FETCHED, TESTED, tested_column
from nbrl.tasks.environments.tables import SUFFIXES, is_text, plain, read_table
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.reward.rules.rule import CODE, FILES, RULES, Rule

LIMITS = ("max_steps", "deadline_s")  # of a question's episodes; a row may leave them empty
# What a file may leave out; the others must be there.
OPTIONAL = ("id", "ability", "source", "rule", "files", *LIMITS)
ONE_ANSWER = "answer"  # as a file may call its answers
EXPECTED = "expected"  # paths of the files that the agent has to make, for the rule files
# Of a table as verl's preparation writes it, which names other columns than ours.
VERL: Mapping[str, str] = {"question": "prompt", "answers": "reward_model", "source": "data_source"}
# What is never taken from a file.
OURS = ("reference", "environment", "collect")
MAPPED = (*(name for name in SCHEMA.names if name not in OURS), EXPECTED, *TESTED)
# Of these a number is its text.
TEXTS = ("id", "question", "answers", "ability", "source", "rule")
_WHOLE = re.compile(r"(-?\d+)\.0+")
EXACT = 1e16  # up to which a whole float is written with all its digits
_SHORT = 21  # digits of a number that is written without an exponent
TRUTH = "ground_truth"  # of a structure that says how an answer is scored


def read_questions(
    given: Path | str,
    columns: Mapping[str, str],
    rule: Rule,
    key: str = "data",
    attached: dict[str, Path | bytes] | None = None,
) -> pa.Table:
    """Return the questions of a file as a table of SCHEMA; `columns` names the file's columns for ours.

    A column `answer` is that of the answers if no other is, and a file with the columns of VERL needs no names for them. A file
    without ids gets some from its name and its rows, one without abilities the ability `qa`, one without rules `rule`.

    `key` is the place of the settings, for errors; the files that questions come with are added to `attached` by their digest.
    Of questions at an address no files come along. Raises ConfigError when the file is missing or not what it must be.
    """
    with on_disk(given, key, SUFFIXES) as path:
        return _questions(path.absolute(), columns, rule, key, isinstance(given, Path), attached)


def _questions(
    path: Path, columns: Mapping[str, str], rule: Rule, key: str, files: bool, attached: dict[str, Path | bytes] | None
) -> pa.Table:
    """Return the questions of a file of this machine; `files` says whether others may lie beside it."""
    converts: dict[str, Convert] = {} if "answers" in columns else {ONE_ANSWER: _text}
    for name in (*MAPPED, FETCHED):
        theirs, convert = columns.get(name, name), _text if name in TEXTS else plain
        converts |= {theirs: convert, theirs.partition(".")[0]: convert}
    folder = (path if path.is_dir() else path.parent) if files else None
    table = read_table(path, key, converts)
    if "question" not in (*columns, *table.column_names) and {*VERL.values()} <= {*table.column_names}:
        columns = {**VERL, **columns}
        table = read_table(path, key, {**converts, **dict.fromkeys(VERL.values(), _text)})
    if "answers" not in (*columns, *table.column_names) and ONE_ANSWER in table.column_names:
        columns = {**columns, "answers": ONE_ANSWER}
    answers = columns.get("answers", "answers")
    if answers in table.column_names and is_text(path, key):
        table = table.set_column(table.column_names.index(answers), answers, whole_texts(table[answers]))
    return questions_of(table, f"data file {path}", _name(path), columns, rule, key, folder, attached)


def questions_of(
    table: pa.Table,
    where: str,
    name: str,
    columns: Mapping[str, str],
    rule: Rule,
    key: str,
    folder: Path | None = None,
    attached: dict[str, Path | bytes] | None = None,
) -> pa.Table:
    """Return questions as `read_questions` does, from a table that is at `where`. `name` begins ids that are made; `folder` holds
    the attached files.
    """
    for ours, theirs in columns.items():
        if theirs not in nested.paths(table):
            hint = did_you_mean(theirs, nested.paths(table))
            raise ConfigError(f"{where} has no column {theirs!r}, which {key}.columns.{ours} names; {hint}")
        if theirs not in table.column_names:
            table = table.append_column(theirs, nested.found(table, theirs))
    rows = len(table)
    made: dict[str, Callable[[], pa.Array]] = {
        "id": lambda: pa.array([f"{name}-{row:06d}" for row in range(rows)], pa.string()),
        "ability": lambda: pa.array(["qa"] * rows, pa.string()),
        "source": lambda: pa.array([name] * rows, pa.string()),
        "rule": lambda: pa.array([rule] * rows, pa.string()),
        "answers": lambda: pa.array([[]] * rows, SCHEMA.field("answers").type),
        "files": lambda: pa.array([[]] * rows, SCHEMA.field("files").type),
        "reference": lambda: pa.array([""] * rows, pa.string()),
        "environment": lambda: pa.array([""] * rows, pa.string()),
        "collect": lambda: pa.array([[]] * rows, SCHEMA.field("collect").type),
        **{limit: partial(pa.nulls, rows, SCHEMA.field(limit).type) for limit in LIMITS},
    }
    expected = columns.get(EXPECTED, EXPECTED)
    ruled = columns.get("rule", "rule")
    rules = [each or rule for each in table[ruled].to_pylist()] if ruled in table.column_names else [rule] * rows
    expects = FILES in rules and expected in table.column_names
    optional = (*OPTIONAL, "answers") if expects or CODE in rules else OPTIONAL
    filled = dict[str, Any](expected_columns(where, table[expected].to_pylist(), folder) if expects else {})
    if CODE in rules:
        others = filled["reference"].to_pylist() if expects else [""] * rows
        tested = tested_column(where, table, columns, rules)
        filled["reference"] = pa.array([one or other for one, other in zip(tested, others, strict=True)], pa.string())
    for field in SCHEMA:
        theirs = columns.get(field.name, field.name)
        empty = field.name == "rule" and theirs in table.column_names and table[theirs].null_count == rows
        if field.name in filled:
            continue
        if field.name in OURS or (field.name in optional and (theirs not in table.column_names or empty)):
            filled[field.name] = made[field.name]()
        elif field.name == "files":
            filled[field.name] = attached_column(where, table[theirs].to_pylist(), folder, {} if attached is None else attached)
        else:
            filled[field.name] = _column(where, table, theirs, field, key)
    questions = pa.table({name: filled[name] for name in SCHEMA.names}, schema=SCHEMA)
    for found_rule in questions["rule"].unique().to_pylist():
        if found_rule not in RULES:
            raise ConfigError(f"{where} has the rule {found_rule!r}; {did_you_mean(found_rule, RULES)}")
    check(questions, where)
    return questions


def read_passages(given: Path | str, key: str) -> pa.Table:
    """Return the passages of a file, in its column `passage`. Raises ConfigError."""
    (field,) = CORPUS_SCHEMA
    with on_disk(given, key, SUFFIXES) as path:
        table = read_table(path.absolute(), key, {field.name: _text})
        column = _column(f"data file {path.absolute()}", table, field.name, field, key)
    return pa.table({field.name: column}, schema=CORPUS_SCHEMA)


def _name(path: Path) -> str:
    """Return the file's name as a part of ids."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in path.stem)[:80] or "file"


def _text(value: Any) -> Any:
    """Return a value as text, in a list too: numbers as written, but 42.0 is 42: some rules would read 420."""
    match value:
        case bool():
            return json.dumps(value)
        case Number():
            return _number(value)
        case float():
            return None  # JSON's numbers are as they are written, but for nan and the infinities
        case list():
            return [_text(each) for each in value]
        case dict():
            return {name: _text(each) for name, each in value.items()}
    return plain(value)


def _number(text: str) -> str:
    """Return a number as it is written, but 42.0 as 42 and 1e+16 with all its digits."""
    if whole := _WHOLE.fullmatch(text):
        return whole[1]
    if "e" in text.lower() and abs((number := Decimal(text)).adjusted()) < _SHORT and number == number.to_integral_value():
        return f"{number:.0f}"
    return text


def _column(where: str, table: pa.Table, name: str, field: pa.Field, key: str) -> pa.ChunkedArray:
    """Return the file's column `name` as our `field`; a single value where a list is needed becomes a list of one."""
    if name not in table.column_names:
        hint = did_you_mean(name, nested.paths(table))
        raise ConfigError(f"{where} lacks the column {field.name!r}; {hint} {key}.columns.{field.name} names it")
    column = table[name]
    if field.name == "question" or (pa.types.is_list(field.type) and field.name == "answers"):
        column = _simple(where, column, name, field)
    column = _whole(column)
    if column.null_count and field.name not in LIMITS:
        raise ConfigError(f"{where}: {column.null_count} rows have no {name!r}; fill it or leave them out")
    try:
        if pa.types.is_list(field.type) and not pa.types.is_nested(column.type):
            column = pa.chunked_array([pa.array([[value] for value in column.cast(pa.string()).to_pylist()], field.type)])
        made = column.cast(field.type)
    except (pa.ArrowException, TypeError) as error:
        members = [each for each in nested.paths(table) if each.startswith(f"{name}.")]
        hint = f"; name one of {', '.join(members)}" if members else ""
        raise ConfigError(f"{where}: the column {name!r} is {column.type} where {field.type} is needed{hint}") from error
    named = NAMED.get(field.name)
    return pa.chunked_array([pa.array([named(each) for each in made.to_pylist()], pa.string())]) if named else made


def _simple(where: str, found: pa.ChunkedArray, name: str, field: pa.Field) -> pa.ChunkedArray:
    """Return messages, as text too, as their question, and a structure with a ground truth as that; all else unchanged."""
    members = {each.rpartition(".")[2] for each in nested.below(name, found.type)[1:]}
    if field.name == "answers":
        truth = pa.types.is_struct(found.type) and TRUTH in members
        return pc.struct_field(found, TRUTH) if truth else found
    values: list[Any] = found.to_pylist()
    if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
        values = [nested.messages_in(each) for each in values]
        if None in values:
            return found
    elif not (pa.types.is_list(found.type) and nested.is_message(members)):
        return found
    try:
        return pa.chunked_array([pa.array([nested.asked(each) for each in values], pa.string())])
    except ValueError as error:
        raise ConfigError(f"{where}: the column {name!r} has {error}; write the question as one text") from error


def _whole(found: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floats as text, in as few digits as distinguish them from others of their type; what is not finite is missing.

    Whole ones have no fraction, for some rules would read 42.0 as 420.
    """
    listed = pa.types.is_list(found.type) or pa.types.is_large_list(found.type) or pa.types.is_fixed_size_list(found.type)
    element = found.type.value_type if listed else found.type
    if pa.types.is_decimal(element):
        kind = pa.list_(pa.string()) if listed else pa.string()
        return pa.chunked_array([pa.array(_decimals(found.to_pylist()), kind)])
    if pa.types.is_timestamp(element):
        return _dates(found, listed, element.tz)
    if not pa.types.is_floating(element):
        return found
    narrow = {pa.float16(): np.float16, pa.float32(): np.float32}.get(element, np.float64)

    def text(value: float | None) -> str | None:
        if value is None or not math.isfinite(value):
            return None
        short = float(str(narrow(value)))
        return str(int(short)) if short.is_integer() and abs(short) < EXACT else repr(short)

    kind = pa.float64() if not listed else pa.list_(pa.float64())
    values = found.cast(kind).to_pylist()
    texts = [each and [text(one) for one in each] if listed else text(each) for each in values]
    return pa.chunked_array([pa.array(texts, pa.list_(pa.string()) if listed else pa.string())])


def _dates(found: pa.ChunkedArray, listed: bool, zone: str | None) -> pa.ChunkedArray:
    """Return points in time as text; without a time of day where none has one, as pandas has days."""
    kind = pa.timestamp("us", zone)
    values = found.cast(pa.list_(kind) if listed else kind, safe=False).to_pylist()
    times = [one for each in values for one in (each or [] if listed else [each]) if one is not None]
    day = not any(one.hour or one.minute or one.second or one.microsecond for one in times)

    def text(value: datetime | None) -> str | None:
        return None if value is None else value.date().isoformat() if day else value.replace(tzinfo=None).isoformat(" ")

    texts = [each and [text(one) for one in each] if listed else text(each) for each in values]
    return pa.chunked_array([pa.array(texts, pa.list_(pa.string()) if listed else pa.string())])


def _decimals(value: Any) -> Any:
    """Return decimals as text, whole ones without a fraction, in lists too."""
    if isinstance(value, list):
        return [_decimals(each) for each in value]
    return (
        value if value is None else f"{value.quantize(Decimal(1)) if value == value.to_integral_value() else value.normalize():f}"
    )


def _named(text: str, other: str, most: int, signs: bool = True) -> str:
    """Return the text as a name, with `-` for what matches `other`.

    A digest of the text keeps names apart that would come out the same; without `signs`, only where letters or digits are lost.
    """
    name = re.sub(other, "-", text)
    lost = re.findall(other, text)
    if 0 < len(text) <= most and not any(signs or each.isalnum() for each in lost):
        return name
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: most - len(digest) - 1]}-{digest}"


NAMED: dict[str, Callable[[str], str]] = {
    "id": lambda text: _named(text, "[^A-Za-z0-9._:-]", 120),  # names files
    "ability": lambda text: text and _named(text, "[^A-Za-z0-9 _.:-]", 80, signs=False),  # names metrics
}
