"""Answers of an evaluation as a CSV file, for spreadsheets."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.tasks.errors import ConfigError

FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d+(\.\d+)?$)")  # a spreadsheet would compute a text that begins so


def check_csv(file: Path) -> None:
    """Raises ConfigError unless the file can be written."""
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigError(f"--csv {file}: give the path of a file in a folder that exists")


def write_csv(answers: pa.Table, file: Path) -> None:
    """Write a row for each answer in UTF-8; lists are JSON, and a text that a spreadsheet would compute gets a ' before it.

    Raises ConfigError if the file cannot be written.
    """
    try:
        with file.open("w", encoding="utf-8", newline="") as target:
            writer = csv.writer(target)
            writer.writerow(answers.column_names)
            writer.writerows([_cell(value) for value in row.values()] for row in answers.to_pylist())
    except OSError as error:
        raise ConfigError(
            f"--csv {file} cannot be written: {error.strerror}; the answers are kept with the evaluation"
        ) from error


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return f"'{value}" if FORMULA.match(value) else value.replace("\0", "")
    return value
