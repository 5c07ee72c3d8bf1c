"""Tables of questions and of passages: their columns, and what every question must have."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.code.reference import complaint
from nbrl.tasks.reward.rules.rule import CODE, FILES, NO_ANSWERS, QA, readable

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("ability", pa.string()),
        ("source", pa.string()),
        ("rule", pa.string()),
        ("reference", pa.string()),  # what a rule needs besides the answers, as JSON; empty for most
        ("environment", pa.string()),
        # In the working folder from the beginning: the name there, and the SHA-256 of the content.
        ("files", pa.list_(pa.struct([("name", pa.string()), ("digest", pa.string())]))),
        ("collect", pa.list_(pa.string())),  # names of files of the working folder that are kept for the score
    ]
)
DEFAULTS: Mapping[str, Any] = {"rule": QA, "reference": "", "environment": "", "files": [], "collect": []}
CORPUS_SCHEMA = pa.schema([("passage", pa.string())])
ID = re.compile(r"[A-Za-z0-9._:-]{1,120}")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9 _.-]{0,119}")  # of a file in the working folder
ABILITY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9 _.:-]{0,79}")  # part of a metric's name


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Questions as a table of SCHEMA; what a row does not say is as DEFAULTS says."""
    return pa.Table.from_pylist([{**DEFAULTS, **row} for row in rows], schema=SCHEMA)


def check(questions: pa.Table, where: str) -> None:
    """Raises ConfigError unless ids can name files and are there once, and each question has answers that say something."""
    ids: list[str] = questions["id"].to_pylist()
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise ConfigError(f"{where} has the id {twice[:80]!r} more than once; every question needs its own")
    known = set(ids)
    for name in ids:
        before, _, number = name.rpartition(".")
        if number.isdecimal() and before in known:
            raise ConfigError(
                f"{where} has the ids {before!r} and {name!r}, which look like one question in two epochs; rename one"
            )
    for row in questions.select(["id", "question", "answers", "ability", "rule", "reference", "collect"]).to_pylist():
        if not ID.fullmatch(row["id"]):
            raise ConfigError(f"{where}: id {row['id'][:80]!r} must be up to 120 letters, digits, '.', '_', ':' and '-'")
        if not ABILITY.fullmatch(row["ability"]):
            raise ConfigError(
                f"{where}: ability {row['ability'][:80]!r} must be up to 80 letters, digits, spaces, '_', '.', ':', '-'"
            )
        if not row["question"].strip():
            raise ConfigError(f"{where}: question {row['id']!r} is empty")
        for name in row["collect"]:
            if not NAME.fullmatch(name):
                raise ConfigError(f"{where}: question {row['id']!r} expects the file {name[:80]!r}; take a plain name")
        if row["rule"] == FILES and not row["collect"]:
            raise ConfigError(f"{where}: question {row['id']!r} expects no file; name some in the column expected")
        if row["rule"] == CODE and (wrong := complaint(row["reference"])):
            raise ConfigError(f"{where}: question {row['id']!r} {wrong}")
        if row["rule"] in NO_ANSWERS:
            continue
        if not row["answers"] or not all(answer and answer.strip() for answer in row["answers"]):
            raise ConfigError(f"{where}: question {row['id']!r} has an empty answer; give it one or leave it out")
        if not any(readable(row["rule"], answer) for answer in row["answers"]):
            raise ConfigError(
                f"{where}: question {row['id']!r} can be answered by no {row['rule']}, for its answer is "
                f"{row['answers'][0][:60]!r}; correct it, or set another rule"
            )
