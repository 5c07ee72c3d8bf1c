"""What the values of a file of questions become: numbers, dates, ids, and passages."""

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.tasks.environments.files import read_passages, read_questions
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.code.reference import reference_of
from tests.tasks.question_rows import FOUND, questions, write


def test_whole_numbers_of_decimals_of_text_and_with_an_exponent_have_no_fraction(tmp_path: Path) -> None:
    values = [Decimal("42.00"), Decimal("2.50"), Decimal("1000.00")]
    for kind, answers in ((pa.decimal128(9, 2), values), (pa.list_(pa.decimal128(9, 2)), [[each] for each in values])):
        pq.write_table(pa.table({"question": ["a?", "b?", "c?"], "answers": pa.array(answers, kind)}), tmp_path / "d.parquet")
        assert read_questions(tmp_path / "d.parquet", {}, "qa")["answers"].to_pylist() == [["42"], ["2.5"], ["1000"]]
    (tmp_path / "f.csv").write_text("question,answers\na?,42.0\nb?,-7.0\n")
    assert read_questions(tmp_path / "f.csv", {}, "qa")["answers"].to_pylist() == [["42"], ["-7"]]
    (tmp_path / "g.csv").write_text("question,answers\na?,42.0\nb?,7.5\n")
    assert read_questions(tmp_path / "g.csv", {}, "qa")["answers"].to_pylist() == [["42.0"], ["7.5"]]
    (tmp_path / "h.jsonl").write_text('{"question": "a?", "answers": 1e+16}\n{"question": "b?", "answers": 1.5e3}\n')
    assert read_questions(tmp_path / "h.jsonl", {}, "qa")["answers"].to_pylist() == [["10000000000000000"], ["1500"]]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.float64())])
def test_numbers_of_a_column_of_floats_are_their_text(tmp_path: Path, kind: pa.DataType) -> None:
    listed = pa.types.is_list(kind)
    numbers: list[Any] = [42.0, 0.1, 16777216.0] if kind == pa.float32() else [99999999999.0, 1e15, 0.1]
    pq.write_table(
        pa.table({"question": ["q?"] * 3, "answers": pa.array([[n] if listed else n for n in numbers], kind)}),
        tmp_path / "x.parquet",
    )
    wanted = ["42", "0.1", "16777216"] if kind == pa.float32() else ["99999999999", "1000000000000000", "0.1"]
    assert [row["answers"] for row in questions(tmp_path / "x.parquet")] == [[text] for text in wanted]
    pq.write_table(pa.table({"question": ["q?"], "answers": [float("nan")]}), tmp_path / "nan.parquet")
    with pytest.raises(ConfigError, match="1 rows have no 'answers'"):
        questions(tmp_path / "nan.parquet")


def test_columns_that_are_not_used_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []
    whole = pq.ParquetFile.read
    monkeypatch.setattr(pq.ParquetFile, "read", lambda file, columns: read.append(columns) or whole(file, columns=columns))
    path = write(tmp_path / "x.parquet", [row | {"picture": "x", "cases": [[1]]} for row in FOUND])
    assert questions(path) == FOUND
    assert read == [["question", "answers"]]


def test_a_column_of_maps_is_refused_and_a_long_field_of_csv_read(tmp_path: Path) -> None:
    maps = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"question": ["q?"], "answers": maps}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="the column 'answers' is map<"):
        questions(tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text(f'question,answers\n"{"x" * (3 << 20)}",1\nq?,2\n')
    assert [row["answers"] for row in questions(tmp_path / "x.csv")] == [["1"], ["2"]]


def test_ids_and_abilities_with_other_signs_can_name_files_and_ids_stay_apart(tmp_path: Path) -> None:
    given = ["test/algebra/1.json", "test?algebra/1.json", "../../z", "a" * 200, "a" * 201, "", "plain"]
    rows = [FOUND[0] | {"id": name, "ability": "Counting & Probability"} for name in given]
    read = read_questions(write(tmp_path / "x.jsonl", rows), {}, "qa").to_pylist()
    ids = [row["id"] for row in read]
    assert ids[0].startswith("test-algebra-1.json-")
    assert ids[-1] == "plain"
    assert len(set(ids)) == len(given)
    assert all(re.fullmatch("[A-Za-z0-9._:-]{1,120}", each) for each in ids)
    assert all(row["ability"] == "Counting - Probability" for row in read)


def test_abilities_in_any_script_stay_apart(tmp_path: Path) -> None:
    given = ["数学", "物理", "C--", "a" * 81, "a" * 82, "plain"]
    rows = [FOUND[0] | {"ability": name} for name in given]
    abilities = read_questions(write(tmp_path / "x.jsonl", rows), {}, "qa")["ability"].to_pylist()
    assert (len(set(abilities)), abilities[2], abilities[-1]) == (len(given), "C--", "plain")
    with pytest.raises(ConfigError, match="ability '' must be"):
        read_questions(write(tmp_path / "x.jsonl", [FOUND[0] | {"ability": ""}]), {}, "qa")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_number_of_json_that_is_not_finite_is_missing(tmp_path: Path, value: str) -> None:
    path = tmp_path / "x.jsonl"
    for column, words in (("answers", "1 rows have no 'answers'"), ("question", "1 rows have no 'question'")):
        path.write_text(json.dumps(FOUND[0] | {column: float(value)}))
        with pytest.raises(ConfigError, match=words):
            questions(path)
    path.write_text(json.dumps(FOUND[0] | {"answers": ["7", float(value)]}))
    with pytest.raises(ConfigError, match="has an empty answer"):
        questions(path)


@pytest.mark.parametrize(
    ("suffix", "fields", "line"),
    [
        (".tsv", ['How long?\t"5', "B?\t6"], 2),
        (".tsv", ["A?\t1", 'How long?\t"5', 'B?\t"6'], 3),
        (".csv", ['"He said \\"hi\\"?",1'], 2),
        (".csv", ['"two\nlines?",1', '"A" or "B"?,2'], 4),
        (".csv", ['A?,"""1""'], 2),
        (".csv", ['A?,"'], 2),
    ],
)
def test_a_quote_that_is_not_closed_at_its_fields_end_is_refused_with_its_line(
    tmp_path: Path, suffix: str, fields: list[str], line: int
) -> None:
    head = "question\tanswers" if suffix == ".tsv" else "question,answers"
    for end in ("\n", "\r\n"):
        (tmp_path / f"x{suffix}").write_bytes(end.join([head, *fields, ""]).encode())
        with pytest.raises(
            ConfigError, match=rf"x{suffix}, line {line}: the quote that opens a field is not closed at its end; put"
        ):
            questions(tmp_path / f"x{suffix}")


def test_quotes_within_a_field_are_text(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'\xef\xbb\xbf"question",answers\r\nHow long is 5"?,"a ""b"", c"\r\n"A, B?",""""')
    assert questions(tmp_path / "x.csv") == [
        {"question": 'How long is 5"?', "answers": ['a "b", c']},
        {"question": "A, B?", "answers": ['"']},
    ]


def test_a_float_in_a_structure_has_the_digits_of_its_type(tmp_path: Path) -> None:
    kind = pa.struct({"ground_truth": pa.float32(), "more": pa.list_(pa.struct({"at": pa.float32()}))})
    truths = [{"ground_truth": 0.1, "more": [{"at": 0.1}, {"at": 2}]}, {"ground_truth": 42, "more": [{"at": 0.3}]}]
    pq.write_table(pa.table({"question": ["a?", "b?"], "answers": pa.array(truths, kind)}), tmp_path / "x.parquet")
    assert [row["answers"] for row in questions(tmp_path / "x.parquet")] == [["0.1"], ["42"]]
    assert [row["answers"] for row in questions(tmp_path / "x.parquet", answers="answers.ground_truth")] == [["0.1"], ["42"]]
    assert [row["answers"] for row in questions(tmp_path / "x.parquet", answers="answers.more.at")] == [["0.1", "2"], ["0.3"]]


def test_passages_are_one_column(tmp_path: Path) -> None:
    rows = [{"passage": "One, two."}, {"passage": "Three."}]
    for suffix in (".parquet", ".jsonl", ".csv"):
        assert read_passages(write(tmp_path / f"c{suffix}", rows), "environments.e.corpus").to_pylist() == rows
    with pytest.raises(ConfigError, match="lacks the column 'passage'; did you mean 'passages'"):
        read_passages(write(tmp_path / "c.jsonl", [{"passages": "One."}]), "environments.e.corpus")


def test_days_have_no_time_of_day(tmp_path: Path) -> None:
    for kind in (pa.timestamp("ns"), pa.timestamp("ms", "UTC"), pa.date32()):
        days = pa.array([datetime(2020, 1, 2, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)]).cast(kind)
        pq.write_table(pa.table({"question": ["a?", "b?"], "answers": days}), tmp_path / "x.parquet")
        assert [row["answers"] for row in questions(tmp_path / "x.parquet")] == [["2020-01-02"], ["1969-12-31"]]
    tokyo, there = pa.timestamp("us", "Asia/Tokyo"), tmp_path / "tokyo.parquet"
    times = pa.array([[datetime(2020, 1, 2, 3, 4)], [datetime(2020, 1, 2)]])
    pq.write_table(pa.table({"question": ["a?", "b?"], "answers": times}), tmp_path / "x.parquet")
    assert [row["answers"] for row in questions(tmp_path / "x.parquet")] == [["2020-01-02 03:04:00"], ["2020-01-02 00:00:00"]]

    pq.write_table(pa.table({"question": ["a?"], "answers": pa.array([datetime(2020, 1, 1, 15, tzinfo=UTC)]).cast(tokyo)}), there)
    assert questions(there)[0]["answers"] == ["2020-01-02"]


def test_large_floats_are_written_as_they_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["a?", "b?"], "answers": [6.022e23, 12.0]}), tmp_path / "x.parquet")
    assert [row["answers"] for row in questions(tmp_path / "x.parquet")] == [["6.022e+23"], ["12"]]


def test_texts_of_files_with_types_keep_an_empty_fraction(tmp_path: Path) -> None:
    rows = [{"question": "Which version?", "answers": "2.0"}]
    assert [questions(write(tmp_path / name, rows))[0]["answers"] for name in ("x.jsonl", "x.parquet", "x.csv")] == [
        ["2.0"],
        ["2.0"],
        ["2"],
    ]


def test_a_conversation_of_sharegpt_is_what_its_user_asks(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one?"}]
    for turns in ([{"from": "human", "value": "one?"}], [{"role": "User", "content": parts}]):
        asked = write(tmp_path / "x.jsonl", [{"conversations": turns, "answers": "1"}])
        assert questions(asked, question="conversations") == [{"question": "one?", "answers": ["1"]}]


def test_tests_of_code_may_be_a_list_as_text(tmp_path: Path) -> None:
    tests = ["assert f(1) == [1]", "assert f('[') == 2"]
    for number, written in enumerate((tests, json.dumps(tests), repr(tests))):
        write(tmp_path / f"{number}.jsonl", [{"question": "q?", "tests": written}])
    found = [read_questions(tmp_path / f"{number}.jsonl", {}, "code")["reference"].to_pylist() for number in range(3)]
    assert found == [[reference_of(tests)]] * 3
