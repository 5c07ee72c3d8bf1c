"""unify: the rows of all sources as one table of questions with ids of their own."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa

from nbrl.tasks.environments.nested import member
from nbrl.tasks.environments.questions import ABILITY, ID
from nbrl.tasks.environments.tables import read_rows
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.prepare.rows import QUESTIONS, Reason, marked
from nbrl.tasks.prepare.settings import EvaluationFile, QuestionSource
from nbrl.tasks.reward.rules.rule import Rule, readable
from nbrl.tasks.runs.warnings import MISSING

OPTIONAL = ("id", "ability", "rule")
Row = Mapping[str, Any]


def read_source(source: QuestionSource) -> list[dict[str, Any]]:
    """Return the file's rows with our column names; an optional column that it lacks is None. Raises ConfigError."""
    return _read(f"source {source.name!r}", source.path, source.columns, ("question", "answers", *OPTIONAL))


def read_evaluation(file: EvaluationFile) -> list[str]:
    """Return the file's questions; rows without one are skipped. Raises ConfigError."""
    rows = _read(f"evaluation file {file.name!r}", file.path, file.columns, ("question",))
    questions = [row["question"] for row in rows if isinstance(row["question"], str) and row["question"].strip()]
    if not questions:
        column = file.columns.get("question", "question")
        raise ConfigError(f"evaluation file {file.name!r}: no row of {file.path} has a text in its column {column!r}")
    return questions


def _read(where: str, path: Path | str, columns: Mapping[str, str], ours: tuple[str, ...]) -> list[dict[str, Any]]:
    if isinstance(path, Path) and not path.exists() and not path.is_symlink() and "*" not in path.name:
        raise ConfigError(f"{where}: there is no file {path}; correct its path")
    rows = read_rows(path)
    names = list(dict.fromkeys(each for row in rows for name, value in row.items() for each in _paths(name, value)))
    for name, theirs in columns.items():
        if theirs not in names:
            raise ConfigError(
                f"{where}: {path} has no column {theirs!r}, which columns.{name} names; {did_you_mean(theirs, names)}"
            )
    for name in ours:
        if name not in OPTIONAL and columns.get(name, name) not in names:
            hint = did_you_mean(name, names, f"it has {', '.join(names)}.")
            raise ConfigError(f"{where}: {path} lacks the column {name!r}; {hint} columns.{name} names it")
    return [{name: _value(row, columns.get(name, name)) for name in ours} for row in rows]


def _paths(name: str, value: Any) -> list[str]:
    """Return the column and what lies in it, as files.paths has them."""
    members = (value[0] if value else None) if isinstance(value, list) else value
    below = members.items() if isinstance(members, dict) else ()
    return [name, *(each for key, inner in below for each in _paths(f"{name}.{key}", inner))]


def _value(row: Mapping[str, Any], name: str) -> Any:
    root, _, below = name.partition(".")
    return row.get(name) if name in row or not below else member(row.get(root), below.split("."))


def unify(sources: Sequence[QuestionSource]) -> pa.Table:
    """Return every row of every source, in their order, marked with why it cannot be a question. Raises ConfigError."""
    rows: list[dict[str, Any]] = []
    reasons: list[Reason] = []
    for source in sources:
        found = read_source(source)
        for row, name in zip(found, _ids(source, found), strict=True):
            question, reason = _question(source, row)
            rows.append({"id": name, **question, "source": source.name})
            reasons.append(reason)
    return marked(pa.Table.from_pylist(rows, schema=QUESTIONS), reasons)


def _question(source: QuestionSource, row: Row) -> tuple[dict[str, Any], Reason]:
    asked = row["question"] if isinstance(row["question"], str) and _encodes(row["question"]) else ""
    rule, ability = row["rule"] or source.rule, row["ability"] or source.ability
    if rule not in get_args(Rule):
        raise ConfigError(
            f"source {source.name!r}: {source.path} has the rule {rule!r}; {did_you_mean(str(rule), get_args(Rule))}"
        )
    if not isinstance(ability, str) or not ABILITY.fullmatch(ability):
        raise ConfigError(
            f"source {source.name!r}: {source.path} has the ability {str(ability)[:80]!r}; it must be up to 80 letters, digits, "
            "spaces, '_', '.', ':' and '-'"
        )
    given = row["answers"] if isinstance(row["answers"], list) else [row["answers"]]
    texts = [_text(value) for value in given]
    answers = list(dict.fromkeys(text.strip() for text in texts if text and text.strip()))
    question = {"question": asked.strip(), "answers": answers, "ability": ability, "rule": rule}
    return question, _reason(row["question"], question, unknown=None in texts)


def _reason(asked: Any, question: Row, unknown: bool) -> Reason:
    if asked is not None and not isinstance(asked, str):
        return "question is not text", type(asked).__name__
    if not question["question"]:
        return "no question", ""
    if unknown:
        return "answer is not text", ""
    if not question["answers"]:
        return "no answer", ""
    if all(answer in MISSING for answer in question["answers"]):
        return "no answer", f"it is the word {question['answers'][0]!r}"
    if not any(readable(question["rule"], answer) for answer in question["answers"]):
        return f"answer is no {question['rule']}", question["answers"][0][:80]
    return None


def _text(value: Any) -> str | None:
    """Return a single value as text, empty where it is missing; None for what is no answer, such as a structure."""
    match value:
        case None:
            return ""
        case str():
            return value if _encodes(value) else None
        case bool():
            return None
        case float() if math.isnan(value):
            return ""
        case float() if value.is_integer():  # by some rules the point of 42.0 would not count, and it would be 420
            return str(int(value))
        case int() | float() | Decimal() | date() | time():
            return str(value)
    return None


def _encodes(text: str) -> bool:
    """Return whether the text can be stored: JSON can hold half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ids(source: QuestionSource, rows: Sequence[Row]) -> list[str]:
    """Return `SOURCE:id`; where the file has no usable id, or has it twice, a digest of the question replaces it.

    So an id does not depend on other rows or sources. Only of equal questions without ids the later ones are numbered.
    """
    own = [str(row["id"]) if isinstance(row["id"], str | int) else "" for row in rows]
    times = Counter(own)
    names: list[str] = []
    seen = Counter[str]()
    for row, each in zip(rows, own, strict=True):
        name = f"{source.name}:{each}"
        if times[each] > 1 or not each or not ID.fullmatch(name):
            digest = hashlib.sha256(str(row["question"]).strip().encode("utf-8", "replace")).hexdigest()[:16]
            name = f"{source.name}:q-{digest}"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names
