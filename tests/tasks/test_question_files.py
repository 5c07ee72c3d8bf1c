"""Questions and passages from files of one's own, of several formats and with columns of any name."""

import csv
import gzip
import json
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nbrl.tasks.environments.files import read_passages, read_questions
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment
from nbrl.tasks.environments.questions import SCHEMA
from nbrl.tasks.environments.tables import read_rows
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
    assert read_rows(path) == [rows[0] | {"rule": None}, rows[1]]
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


FOUND = [{"question": "q0?", "answers": ["0"]}, {"question": "q1?", "answers": ["1"]}]


def questions(path: Path, **columns: str) -> list[dict[str, Any]]:
    return read_questions(path, columns, "qa").select(["question", "answers"]).to_pylist()


def test_a_folder_a_pattern_or_zipped_text_is_its_files_in_order(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for place, row in enumerate(FOUND):
        write(shards / f"train-{place}.parquet", [row])
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in FOUND).encode()))
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"question,answers\nq0?,0\nq1?,1\n"))
    write(shards / ".train-2.parquet", [FOUND[0] | {"question": "hidden?"}])
    for path in (shards, shards / "*.parquet", tmp_path / "x.jsonl.gz", tmp_path / "x.csv.gz"):
        assert questions(path) == FOUND
    assert len({*read_questions(shards, {}, "qa")["id"].to_pylist()}) == 2
    write(shards / "more.csv", ROWS)
    with pytest.raises(ConfigError, match=r"holds files of several formats, \.csv, \.parquet; name one file, or a pattern"):
        questions(shards)


def test_a_data_set_that_datasets_saved_is_read_split_by_split(tmp_path: Path) -> None:
    split = tmp_path / "saved" / "train"
    split.mkdir(parents=True)
    for place, row in enumerate(FOUND):
        table = pa.Table.from_pylist([row])
        with pa.ipc.new_stream(split / f"{place}.arrow", table.schema) as stream:
            stream.write_table(table)
    (split / "dataset_info.json").write_text("{}")
    (split / "state.json").write_text(json.dumps({"_data_files": [{"filename": "1.arrow"}, {"filename": "0.arrow"}]}))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert questions(split) == FOUND[::-1]
    assert questions(split / "0.arrow") == FOUND[:1]
    with pytest.raises(ConfigError, match=r"has several splits, train; name the folder of one, such as .*/saved/train"):
        questions(tmp_path / "saved")


@pytest.mark.parametrize("name", ["../diary.jsonl", "{folder}/diary.jsonl", "..", ".", "", "deep/x.jsonl", 5, None, []])
@pytest.mark.attack(
    tried="A saved data set that names a file outside its folder as its data",
    wall="it names files of its own folder",
    effect="one sentence",
)
def test_a_saved_data_set_names_files_of_its_own_folder(tmp_path: Path, name: object) -> None:
    split = tmp_path / "train"
    (split / "deep").mkdir(parents=True)
    for path in (tmp_path / "diary.jsonl", split / "deep/x.jsonl"):
        write(path, FOUND)
    named = name.format(folder=tmp_path) if isinstance(name, str) else name
    (split / "dataset_info.json").write_text("{}")
    (split / "state.json").write_text(json.dumps({"_data_files": [{"filename": named}]}))
    with pytest.raises(ConfigError, match=r"state\.json names '.*', which is no file of its folder"):
        questions(split)


@pytest.mark.parametrize("column", ["files", "expected"])
@pytest.mark.attack(
    tried="A pipe as a file that a question comes with, or expects",
    wall="what is no regular file is not read",
    effect="one sentence",
)
def test_a_pipe_beside_questions_is_not_read_for_ever(tmp_path: Path, column: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, words in (("pipe", "is no regular file"), ("loop", "symbolic links"), ("..", "is not in its folder")):
        path = write(tmp_path / "x.jsonl", [{"question": "q?", "answers": ["a"], column: [name]}])
        with pytest.raises(ConfigError, match=words):
            read_questions(path, {}, "qa" if column == "files" else "files")


PUBLISHED = {
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q?"}],
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "aliases": [{"text": "x"}, {"text": "y"}],
}


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_what_lies_in_a_column_is_named_by_its_path_and_messages_are_what_they_ask(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"x{suffix}", [PUBLISHED])
    question = "Be brief.\n\nq?"
    assert questions(path, question="prompt", answers="reward_model.ground_truth") == [{"question": question, "answers": ["7"]}]
    assert questions(path, question="prompt", answers="reward_model") == [{"question": question, "answers": ["7"]}]
    assert questions(path, question="prompt", answers="aliases.text") == [{"question": question, "answers": ["x", "y"]}]
    with pytest.raises(ConfigError, match=r"no column 'reward_model\.truth', .* did you mean 'reward_model\.ground_truth'"):
        questions(path, question="prompt", answers="reward_model.truth")
    for text in (json.dumps(PUBLISHED["prompt"]), str(PUBLISHED["prompt"])):
        told = write(tmp_path / f"z{suffix}", [PUBLISHED | {"prompt": text}])
        assert questions(told, question="prompt", answers="aliases.text") == [{"question": question, "answers": ["x", "y"]}]
    two = write(tmp_path / f"y{suffix}", [PUBLISHED | {"prompt": [{"role": "user", "content": "q?"}] * 2}])
    with pytest.raises(ConfigError, match="'prompt' has a conversation of user, user, where a user asks once"):
        questions(two, question="prompt", answers="aliases.text")


def test_a_pattern_may_lead_through_folders(tmp_path: Path) -> None:
    for name in ("a/x.jsonl", "b/c/y.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        write(tmp_path / name, [{"question": f"{name}?", "answers": ["7"]}])
    for pattern, count in (("**/*.jsonl", 2), ("*/x.jsonl", 1), ("b/**/*.jsonl", 1)):
        assert len(questions(tmp_path / pattern)) == count


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


@pytest.mark.parametrize("address", ["https://host/q.jsonl", "s3://bucket/q.parquet"])
def test_an_address_is_no_file_and_is_named_as_it_was_given(address: str) -> None:
    with pytest.raises(ValidationError, match=f"{address} is an address"):
        FilesEnvironment.model_validate({"kind": "files", "train": address, "held_out": "x.jsonl"})


def test_passages_are_one_column(tmp_path: Path) -> None:
    rows = [{"passage": "One, two."}, {"passage": "Three."}]
    for suffix in (".parquet", ".jsonl", ".csv"):
        assert read_passages(write(tmp_path / f"c{suffix}", rows), "environments.e.corpus").to_pylist() == rows
    with pytest.raises(ConfigError, match="lacks the column 'passage'; did you mean 'passages'"):
        read_passages(write(tmp_path / "c.jsonl", [{"passages": "One."}]), "environments.e.corpus")
