"""Questions and passages from files of one's own, of several formats and with columns of any name."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.tasks.environments.files import read_passages, read_questions
from nbrl.tasks.environments.questions import SCHEMA
from nbrl.tasks.errors import ConfigError

ROWS = [{"problem": "What is 6 × 7?", "solution": "42"}, {"problem": "What, then, is 7 × 7?\n", "solution": "49"}]
COLUMNS = {"question": "problem", "answers": "solution"}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        case ".json":
            path.write_text(json.dumps(rows))
        case ".csv" | ".tsv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        case _:
            pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json", ".csv", ".tsv"])
def test_every_format_gives_the_same_questions(tmp_path: Path, suffix: str) -> None:
    table = read_questions(write(tmp_path / f"my data{suffix}", ROWS), COLUMNS, "number")
    assert table.schema == SCHEMA
    assert table.to_pylist() == [
        {"id": f"my-data-{n:06d}", "question": row["problem"], "answers": [row["solution"]], "ability": "qa", "source": "my-data"}
        | {"rule": "number", "reference": "", "environment": "", "files": [], "collect": []}
        for n, row in enumerate(ROWS)
    ]


def test_columns_that_are_there_are_taken_as_they_are(tmp_path: Path) -> None:
    row = {"id": "a", "question": "q?", "answers": ["x", "y"], "ability": "one", "source": "s"}
    for suffix in (".parquet", ".jsonl", ".json"):
        assert read_questions(write(tmp_path / f"x{suffix}", [row | {"more": 1}]), {}, "qa").to_pylist() == [
            row | {"rule": "qa", "reference": "", "environment": "", "files": [], "collect": []}
        ]


def test_numbers_as_answers_and_ids_are_their_text(tmp_path: Path) -> None:
    (row,) = read_questions(write(tmp_path / "x.csv", [{"id": 7, "question": "q?", "answers": 42}]), {}, "number").to_pylist()
    assert (row["id"], row["answers"]) == ("7", ["42"])


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (ROWS, {"question": "problm"}, r"no column 'problm', which data\.columns\.question names; did you mean 'problem'\?"),
        (ROWS, {}, r"lacks the column 'question'; .* data\.columns\.question names it"),
        ([{"question": "q?", "answers": None}], {}, "1 rows have no 'answers'"),
        ([{"question": "q?", "answers": "x", "id": None}], {}, "1 rows have no 'id'"),
        ([{"question": "q?", "answers": "x", "id": "a"}] * 2, {}, "has the id 'a' more than once"),
        (
            [{"question": "q?", "answers": "x", "id": name} for name in ("1", "1.1")],
            {},
            "the ids '1' and '1.1', which look like one",
        ),
        ([{"question": " ", "answers": "x"}], {}, "question 'x-000000' is empty"),
        ([{"question": "q?", "answers": [""]}], {}, "question 'x-000000' has an empty answer"),
        ([{"question": "q?", "answers": []}], {}, "question 'x-000000' has an empty answer"),
        ([{"question": "q?", "answers": "about four"}], {}, "can be answered by no number, for its answer is 'about four'"),
        ([{"question": "q?", "answers": {"text": "x"}}], {}, "the column 'answers' is struct"),
        ([{"question": "q?", "answers": "x", "rule": "codes"}], {}, "has the rule 'codes'"),
        ([], {}, "has no rows"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, rows: list[dict[str, Any]], columns: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read_questions(write(tmp_path / "x.parquet", rows), columns, "number" if "number" in words else "qa")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.jsonl", b'{"question": "q?", "answers": ["x"]}\n{"question": "wh'),
        ("x.json", b'[{"question": "q?"'),
        ("x.json", b'"text"'),
        ("x.json", b"[1, 2]"),
        ("x.csv", b""),
        ("x.csv", b"question,answers\na,b,c\n"),
        ("x.parquet", b"PAR1"),
        ("x.xlsx", b"PK"),
        ("x.json", b"\xff\xfe"),
    ],
)
def test_a_file_that_is_cut_short_or_of_another_kind_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=rf"data file .*/{name} (cannot be read: |has no rows)"):
        read_questions(tmp_path / name, {}, "qa")


def test_passages_are_one_column(tmp_path: Path) -> None:
    rows = [{"passage": "One, two."}, {"passage": "Three."}]
    for suffix in (".parquet", ".jsonl", ".csv"):
        assert read_passages(write(tmp_path / f"c{suffix}", rows), "environments.e.corpus").to_pylist() == rows
    with pytest.raises(ConfigError, match="lacks the column 'passage'; did you mean 'passages'"):
        read_passages(write(tmp_path / "c.jsonl", [{"passages": "One."}]), "environments.e.corpus")
