"""Questions and passages from files of one's own, of several formats and with columns of any name."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.environments.files import read_passages, read_questions
from nbrl.tasks.environments.questions import SCHEMA
from nbrl.tasks.environments.tables import read_rows
from nbrl.tasks.errors import ConfigError
from tests.tasks.question_rows import COLUMNS, ROWS, questions, write


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json", ".csv", ".tsv"])
def test_every_format_gives_the_same_questions(tmp_path: Path, suffix: str) -> None:
    table = read_questions(write(tmp_path / f"my data{suffix}", ROWS), COLUMNS, "number")
    assert table.schema == SCHEMA
    assert table.to_pylist() == [
        {"id": f"my-data-{n:06d}", "question": row["problem"], "answers": [row["solution"]], "ability": "qa", "source": "my-data"}
        | {
            "rule": "number",
            "reference": "",
            "environment": "",
            "files": [],
            "collect": [],
            "max_steps": None,
            "deadline_s": None,
        }
        for n, row in enumerate(ROWS)
    ]


def test_columns_that_are_there_are_taken_as_they_are(tmp_path: Path) -> None:
    row = {"id": "a", "question": "q?", "answers": ["x", "y"], "ability": "one", "source": "s"}
    for suffix in (".parquet", ".jsonl", ".json"):
        assert read_questions(write(tmp_path / f"x{suffix}", [row | {"more": 1}]), {}, "qa").to_pylist() == [
            row
            | {
                "rule": "qa",
                "reference": "",
                "environment": "",
                "files": [],
                "collect": [],
                "max_steps": None,
                "deadline_s": None,
            }
        ]


def test_numbers_as_answers_and_ids_are_their_text(tmp_path: Path) -> None:
    (row,) = read_questions(write(tmp_path / "x.csv", [{"id": 7, "question": "q?", "answers": 42}]), {}, "number").to_pylist()
    assert (row["id"], row["answers"]) == ("7", ["42"])


WRITTEN = ["00501", "10:30", "1999-05-01", "1999-05-01T10:00", "12345678901234567890123", "3.14159265358979323846", "2.50", "1e5"]
WORDS = ["NA", "NULL", "nan", "true", "FALSE", " x", "#N/A"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv"])
@pytest.mark.parametrize("answer", [*WRITTEN, *WORDS])
def test_a_text_stays_as_it_is_written(tmp_path: Path, suffix: str, answer: str) -> None:
    row = {"id": "007", "question": answer, "answers": answer, "source": "1.0"}
    path = write(tmp_path / f"x{suffix}", [row])
    (read,) = read_questions(path, {}, "qa").to_pylist()
    assert (read["id"], read["question"], read["answers"], read["source"]) == ("007", answer, [answer], "1.0")
    assert read_rows(path) == [row]
    passages = write(tmp_path / f"c{suffix}", [{"passage": answer}])
    assert read_passages(passages, "environments.e.corpus").to_pylist() == [{"passage": answer}]


@given(rows=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1), min_size=1, max_size=5))
def test_any_text_comes_out_of_any_file_as_it_went_in(tmp_path_factory: pytest.TempPathFactory, rows: list[str]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    for suffix in (".jsonl", ".json", ".csv", ".tsv"):
        path = write(folder / f"x{suffix}", [{"passage": text} for text in rows])
        assert read_passages(path, "environments.e.corpus")["passage"].to_pylist() == rows


def test_ids_that_differ_only_as_text_are_two(tmp_path: Path) -> None:
    rows = [{"id": name, "question": "q?", "answers": "x"} for name in ("01", "1", "1e0")]
    assert read_questions(write(tmp_path / "x.csv", rows), {}, "qa")["id"].to_pylist() == ["01", "1", "1e0"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_numbers_of_json_are_their_text_without_an_empty_fraction(tmp_path: Path, suffix: str) -> None:
    numbers = ["42", "42.0", "2.50", "3.14159265358979323846", "12345678901234567890123", "1e-7", "-0.5", "true", '"x", 1.0']
    rows = [f'{{"id": {place}, "question": "q?", "answers": [{text}]}}' for place, text in enumerate(numbers)]
    path = tmp_path / f"x{suffix}"
    path.write_text("\n".join(rows) if suffix == ".jsonl" else f"[{', '.join(rows)}]")
    questions = read_questions(path, {}, "qa")
    assert questions["answers"].to_pylist() == [[text] for text in ["42", "42", *numbers[2:-1]]] + [["x", "1"]]
    assert questions["id"].to_pylist() == [str(place) for place in range(len(numbers))]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_an_empty_field_is_missing(tmp_path: Path, suffix: str) -> None:
    rows = [{"question": "one?", "answers": "x"}, {"question": "two?", "answers": ""}]
    with pytest.raises(ConfigError, match="1 rows have no 'answers'"):
        read_questions(write(tmp_path / f"x{suffix}", rows), {}, "qa")
    assert read_rows(tmp_path / f"x{suffix}")[1] == {"question": "two?", "answers": None}


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_column_that_the_first_row_lacks_is_read(tmp_path: Path, suffix: str) -> None:
    rows = [{"question": "one?", "answers": "x"}, {"question": "two?", "answers": "5 km", "rule": "number"}]
    path = write(tmp_path / f"x{suffix}", rows)
    read = read_rows(path)
    assert (read, read[0]["rule"]) == (rows, None)
    with pytest.raises(KeyError):
        read[0]["source"]
    with pytest.raises(ConfigError, match="1 rows have no 'rule'"):
        read_questions(path, {}, "qa")
    (tmp_path / "a.txt").write_text("a")
    rows = [rows[0], rows[0] | {"files": "a.txt"}]
    files = read_questions(write(path, rows), {}, "qa")["files"].to_pylist()
    assert [[file["name"] for file in each] for each in files] == [[], ["a.txt"]]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_columns_that_nothing_names_may_hold_anything(tmp_path: Path, suffix: str) -> None:
    odd = [None, "x", 2**70, [1, "x"], {"a": [{}]}, 1.5, True]
    rows = [{"question": "q?", "answers": "x", "context": value} for value in odd]
    path = write(tmp_path / f"x{suffix}", rows)
    assert len(read_questions(path, {}, "qa")) == len(odd)
    assert read_rows(path) == rows


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.jsonl", '{"question": "q?"}\n\n{"question": "wh', r"line 3, character 14: Unterminated string"),
        ("x.jsonl", '{"question": "q?"}\n[1]\n', "line 2 is no object with named values"),
        ("x.jsonl", '{"question": "q?"}\n{"question": 1, "question": 2}', "line 2: an object has the name 'question' twice"),
        ("x.jsonl", '{"answers": "x"}\n\n{"answers": {"text": "x"}}\n', "line 3: 'answers' does not fit into its column: "),
        ("x.jsonl", '{"answers": "x"}\n{"answers": "\\ud800"}\n', "line 2: 'answers' does not fit into its column: "),
        ("x.jsonl", '{"answers": ["x"]}\n{"answers": {"text": "x"}}', "line 2: 'answers' does not fit into its column: "),
        ("x.jsonl", "[" * 100_000, "line 1: maximum recursion"),
        ("x.json", '[{"answers": "x"}, {"answers": {"text": "x"}}]', "object 2: 'answers' does not fit into its column: "),
        ("x.json", '[{"answers": "x"}, 7]', "object 2 is no object with named values"),
        ("x.json", '{"answers": "x"}', "it is no list of objects"),
    ],
)
def test_what_is_wrong_in_a_file_of_json_is_named_with_its_place(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"data file .*/{name} cannot be read: {words}.*; it must be one of"):
        read_questions(tmp_path / name, {}, "qa")


def test_one_answer_may_stand_alone_where_other_rows_have_lists(tmp_path: Path) -> None:
    rows = [{"question": "q?", "answers": answers} for answers in ("x", ["y", "z"], 3, True)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_questions(tmp_path / "x.jsonl", {}, "qa")["answers"].to_pylist() == [["x"], ["y", "z"], ["3"], ["true"]]


@pytest.mark.parametrize(
    ("name", "text"), [("x.csv", "question,answers\ncafé,1\n"), ("x.jsonl", '{"question": "café", "answers": "1"}')]
)
def test_text_of_another_character_set_is_said_to_be_that(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode("cp1252"))
    with pytest.raises(ConfigError, match=rf"data file .*/{name} cannot be read: .*; save it as UTF-8$"):
        read_questions(tmp_path / name, {}, "qa")


def test_csv_in_utf_16_is_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("question,answers\nq?,1\n", encoding="utf-16")
    with pytest.raises(ConfigError, match=r"x\.csv cannot be read: .*; save it as UTF-8$"):
        questions(tmp_path / "x.csv")


def test_json_lines_in_a_file_of_json_are_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"question": "a?", "answers": "1"}\n{"question": "b?", "answers": "2"}\n')
    with pytest.raises(ConfigError, match=r"it holds several values; the name of a file of JSON lines ends in \.jsonl"):
        questions(tmp_path / "x.json")


def test_a_mark_of_utf_8_at_the_beginning_is_no_text(tmp_path: Path) -> None:
    for suffix, text in ((".csv", "passage\nx\n"), (".jsonl", '{"passage": "x"}\n'), (".json", '[{"passage": "x"}]')):
        (tmp_path / f"x{suffix}").write_text(text, encoding="utf-8-sig")
        assert read_rows(tmp_path / f"x{suffix}") == [{"passage": "x"}]


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
        ([{"prompt": "q?", "completion": "x"}], {}, r"lacks the column 'question'; there are: completion, prompt\. data"),
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
        ("x.csv", b"question;answers\na;b\n"),
        ("x.csv", b"question;answers\nQ, really;1\n"),
        ("x.tsv", b"question,answers\na,b\n"),
        ("x.parquet", b"PAR1"),
        ("x.xlsx", b"PK"),
        ("x.json", b"\xff\xfe"),
    ],
)
def test_a_file_that_is_cut_short_or_of_another_kind_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=rf"data file .*/{name} (cannot be read: |has no rows)"):
        read_questions(tmp_path / name, {}, "qa")
