"""Rows of the files that a recipe names. What is wrong with a file is an error; what is wrong with a row is its reason to go."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbrl.tasks.environments.nested import member
from nbrl.tasks.environments.tables import read_rows
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.prepare.settings import EvaluationFile, Source

OPTIONAL = ("id", "ability", "rule")


def read_source(source: Source) -> list[dict[str, Any]]:
    """The file's rows with our column names; an optional column that it lacks is None. Raises ConfigError."""
    return _read(f"source {source.name!r}", source.path, source.columns, ("question", "answers", *OPTIONAL))


def read_evaluation(file: EvaluationFile) -> list[str]:
    """The file's questions; rows without one are passed over. Raises ConfigError."""
    rows = _read(f"evaluation file {file.name!r}", file.path, file.columns, ("question",))
    questions = [row["question"] for row in rows if isinstance(row["question"], str) and row["question"].strip()]
    if not questions:
        column = file.columns.get("question", "question")
        raise ConfigError(f"evaluation file {file.name!r}: no row of {file.path} has a text in its column {column!r}")
    return questions


def _read(where: str, path: Path, columns: Mapping[str, str], ours: tuple[str, ...]) -> list[dict[str, Any]]:
    if not path.exists() and not path.is_symlink() and "*" not in path.name:
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
    """The column and what lies in it, as files.paths has them."""
    members = (value[0] if value else None) if isinstance(value, list) else value
    below = members.items() if isinstance(members, dict) else ()
    return [name, *(each for key, inner in below for each in _paths(f"{name}.{key}", inner))]


def _value(row: Mapping[str, Any], name: str) -> Any:
    root, _, below = name.partition(".")
    return row.get(name) if name in row or not below else member(row.get(root), below.split("."))
