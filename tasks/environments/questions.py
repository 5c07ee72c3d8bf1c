"""Tables of questions and of passages: their columns, and what every question must have."""

import re
from collections import Counter

import pyarrow as pa

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.rule import GYM, QA, readable

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("ability", pa.string()),
        ("source", pa.string()),
        ("rule", pa.string()),
        ("reference", pa.string()),  # what a rule needs besides the answers, as JSON; empty for most
    ]
)
CORPUS_SCHEMA = pa.schema([("passage", pa.string())])
ID = re.compile(r"[A-Za-z0-9._:-]{1,120}")
ABILITY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9 _.:-]{0,79}")  # part of a metric's name


def with_rules(questions: pa.Table) -> pa.Table:
    """The questions with the rule of each; those of runs that earlier releases began have none: they are compared as words."""
    if "rule" in questions.column_names:
        return questions
    place, count = questions.column_names.index("source") + 1, len(questions)
    with_rule = questions.add_column(place, "rule", pa.array([QA] * count, pa.string()))
    return with_rule.add_column(place + 1, "reference", pa.array([""] * count, pa.string()))


def check(questions: pa.Table, where: str) -> None:
    """Raises ConfigError unless ids can name files and are there once, and each question has answers that say something."""
    ids: list[str] = questions["id"].to_pylist()
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise ConfigError(f"{where} has the id {twice[:80]!r} more than once; every question needs its own")
    for row in questions.select(["id", "question", "answers", "ability", "rule"]).to_pylist():
        if not ID.fullmatch(row["id"]):
            raise ConfigError(f"{where}: id {row['id'][:80]!r} must be up to 120 letters, digits, '.', '_', ':' and '-'")
        if not ABILITY.fullmatch(row["ability"]):
            raise ConfigError(
                f"{where}: ability {row['ability'][:80]!r} must be up to 80 letters, digits, spaces, '_', '.', ':', '-'"
            )
        if not row["question"].strip():
            raise ConfigError(f"{where}: question {row['id']!r} is empty")
        if row["rule"] == GYM:  # some of its tasks have no single answer
            continue
        if not row["answers"] or not all(answer and answer.strip() for answer in row["answers"]):
            raise ConfigError(f"{where}: question {row['id']!r} has an empty answer; give it one or leave it out")
        if not any(readable(row["rule"], answer) for answer in row["answers"]):
            raise ConfigError(
                f"{where}: question {row['id']!r} can be answered by no {row['rule']}, for its answer is "
                f"{row['answers'][0][:60]!r}; correct it, or set another data.rule"
            )
