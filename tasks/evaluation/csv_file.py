"""Answers of an evaluation as a CSV file, for spreadsheets."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.answers import question_id

IN_FILE = ("question", "references")
# A spreadsheet would compute a text that begins so.
FORMULA = re.compile(r"[=@\uff1d\uff20\uff0b\uff0d\t\r]|[+-](?!\d+(\.\d+)?$)")


def check_csv(file: Path) -> None:
    """Raises ConfigError unless the file can be written."""
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigError(f"--csv {file}: give the path of a file in a folder that exists")


def beside(answers: pa.Table, questions: pa.Table, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the file from which the questions came, each beside every answer to it.

    A column of the file that has the name of one of ours gets ` (file)` behind it. The file has the questions and references.
    """
    place = {question_id(row["environment"], row["id"]): number for number, row in enumerate(questions.to_pylist())}
    names = [name for name in answers.column_names if name not in IN_FILE]
    columns = dict.fromkeys(name for row in rows for name in row)
    own = {name: f"{name} (file)" if name in names else name for name in columns}
    return [
        {own[name]: rows[place[row["question_id"]]].get(name) for name in columns} | {name: row[name] for name in names}
        for row in answers.to_pylist()
    ]


def write_csv(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write rows in UTF-8; lists are JSON, and a text that a spreadsheet would compute gets a ' before it.

    Raises ConfigError if the file cannot be written.
    """
    try:
        with file.open("w", encoding="utf-8", newline="") as target:
            writer = csv.writer(target)
            writer.writerow([_cell(name) for name in rows[0]] if rows else [])
            writer.writerows([_cell(value) for value in row.values()] for row in rows)
    except OSError as error:
        raise ConfigError(
            f"--csv {file} cannot be written: {error.strerror}; the answers are kept with the evaluation"
        ) from error


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        shown = value.replace("\0", "")
        return f"'{shown}" if FORMULA.match(shown) else shown
    return value
