"""Answers as a CSV file."""

import csv
from pathlib import Path

import pytest

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.answers import SCHEMA
from nbrl.tasks.evaluation.csv_file import check_csv, write_csv


def row(answer: str | None) -> dict[str, object]:
    return dict.fromkeys(SCHEMA.names) | {"question": 'say "a,b"\nor c', "references": ["é", "x"], "answer": answer}


def test_each_answer_is_a_row_and_reads_back(tmp_path: Path) -> None:
    write_csv([row("42"), row(None)], tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["question"], first["references"], first["answer"]) == ('say "a,b"\nor c', '["é", "x"]', "42")
    assert second["answer"] == ""


@pytest.mark.parametrize(
    ("answer", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("\0=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\0+1.5", "+1.5"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("-5", "-5"),
        ("+3.25", "+3.25"),
    ],
)
def test_nothing_that_a_model_answered_is_computed_by_a_spreadsheet(tmp_path: Path, answer: str, cell: str) -> None:
    write_csv([row(answer)], tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        (found,) = csv.DictReader(file)
    assert found["answer"] == cell


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "nowhere" / "a.csv"):
        with pytest.raises(ConfigError, match="in a folder that exists"):
            check_csv(file)
