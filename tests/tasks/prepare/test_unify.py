"""Rows of files as questions: what is missing is a reason, never a text that says so."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.environments.files import read_questions
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.prepare.rows import kept
from nbrl.tasks.prepare.settings import EvaluationFile, QuestionSource
from nbrl.tasks.prepare.unify import read_evaluation, unify
from tests.tasks.prepare.doubles import reasons


def source(folder: Path, rows: list[dict[str, Any]], name: str = "a", **settings: Any) -> QuestionSource:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(rows))
    return QuestionSource(name=name, path=path, licence="MIT", **settings)


def test_rows_become_questions_with_ids_of_their_source(tmp_path: Path) -> None:
    one = source(
        tmp_path,
        [{"id": 7, "problem": " What is 6 × 7? ", "solution": 42.0}],
        columns={"question": "problem", "answers": "solution"},
        rule="number",
    )
    two = source(tmp_path, [{"id": "7", "question": "Who?", "answers": ["Ann", None, " ", "Ann"], "ability": "names"}], "b")
    assert unify([one, two]).to_pylist() == [
        {"id": "a:7", "question": "What is 6 × 7?", "answers": ["42"], "ability": "qa", "source": "a", "rule": "number"}
        | {"dropped": None, "detail": None},
        {"id": "b:7", "question": "Who?", "answers": ["Ann"], "ability": "names", "source": "b", "rule": "qa"}
        | {"dropped": None, "detail": None},
    ]


def test_what_lies_in_a_column_is_named_by_its_path(tmp_path: Path) -> None:
    rows = [{"extra": {"question": "Who?"}, "answers": [{"text": "Ann"}, {"text": "Bo"}]}]
    made = unify([source(tmp_path, rows, columns={"question": "extra.question", "answers": "answers.text"})])
    assert made.select(["question", "answers", "dropped"]).to_pylist() == [
        {"question": "Who?", "answers": ["Ann", "Bo"], "dropped": None}
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": None, "answers": "x"}, "no question"),
        ({"question": " ", "answers": "x"}, "no question"),
        ({"question": 3, "answers": "x"}, "question is not text"),
        ({"question": "q?", "answers": None}, "no answer"),
        ({"question": "q?", "answers": []}, "no answer"),
        ({"question": "q?", "answers": [None, ""]}, "no answer"),
        ({"question": "q?", "answers": float("nan")}, "no answer"),
        ({"question": "q?", "answers": "None"}, "no answer"),
        ({"question": "q?", "answers": ["nan", "null"]}, "no answer"),
        ({"question": "q?", "answers": True}, "answer is not text"),
        ({"question": "q?", "answers": {"value": "x"}}, "answer is not text"),
        ({"question": "q?", "answers": "\ud800"}, "answer is not text"),
        ({"question": "q?", "answers": "many", "rule": "number"}, "answer is no number"),
    ],
)
def test_a_row_that_is_no_question_keeps_its_reason(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    table = unify([source(tmp_path, [row, {"question": "good?", "answers": "yes"}])])
    (found,) = reasons(table).values()
    assert found[0] == reason
    assert kept(table)["question"].to_pylist() == ["good?"]


@given(st.lists(st.sampled_from([None, "", "  ", "None", "nan", "Ann", "no"]), max_size=4))
def test_a_missing_answer_never_becomes_a_word(tmp_path_factory: pytest.TempPathFactory, answers: list[str | None]) -> None:
    table = unify([source(tmp_path_factory.mktemp("rows"), [{"question": "q?", "answers": answers}])])
    assert bool(len(kept(table))) == bool({"Ann", "no"} & set(answers))
    assert table["answers"].to_pylist()[0] == list(dict.fromkeys(each for each in answers if each and each.strip()))


def test_ids_do_not_depend_on_other_rows(tmp_path: Path) -> None:
    rows = [{"question": f"question {n}?", "answers": "x"} for n in range(4)]
    before = unify([source(tmp_path, rows)])["id"].to_pylist()
    after = unify([source(tmp_path, [{"question": "new?", "answers": "x"}, *reversed(rows)])])["id"].to_pylist()
    assert set(before) < set(after)


def test_ids_that_are_doubled_or_cannot_be_one_are_made_unique(tmp_path: Path) -> None:
    rows = [
        {"id": name, "question": text, "answers": "x"}
        for name, text in [("1", "a?"), ("1", "b?"), ("ü", "c?"), ("", "d?"), ("2", "e?")]
    ]
    rows += [{"id": None, "question": "f?", "answers": "x"}] * 2
    ids = unify([source(tmp_path, rows)])["id"].to_pylist()
    assert len(set(ids)) == len(ids)
    assert ids[4] == "a:2"
    assert ids[6] == f"{ids[5]}-2"


def test_what_is_kept_is_a_file_to_train_on(tmp_path: Path) -> None:
    table = kept(unify([source(tmp_path, [{"question": "q?", "answers": 7}, {"question": "r?", "answers": "x"}])]))
    pq.write_table(table, tmp_path / "train.parquet")
    assert read_questions(tmp_path / "train.parquet", {}, "qa").select(table.column_names).equals(table)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"columns": {"answers": "solutions"}},
            "has no column 'solutions', which columns.answers names; did you mean 'solution'",
        ),
        ({}, "source 'a': .* lacks the column 'answers'; it has question, solution"),
    ],
)
def test_a_missing_column_names_the_nearest(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        unify([source(tmp_path, [{"question": "q?", "solution": "x"}], **settings)])


def test_a_rule_or_ability_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rule 'numbr'; did you mean 'number'"):
        unify([source(tmp_path, [{"question": "q?", "answers": "x", "rule": "numbr"}])])
    with pytest.raises(ConfigError, match="ability 'a/b'"):
        unify([source(tmp_path, [{"question": "q?", "answers": "x", "ability": "a/b"}])])


def test_a_file_that_is_missing_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="source 'a': there is no file"):
        unify([QuestionSource(name="a", path=tmp_path / "a.parquet", licence="MIT")])
    (tmp_path / "a.xml").write_text("<a/>")
    with pytest.raises(ConfigError, match=r"must be one of .parquet"):
        unify([QuestionSource(name="a", path=tmp_path / "a.xml", licence="MIT")])


def test_questions_of_evaluation_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["q?", None, " "], "n": [1, 2, 3]}), tmp_path / "e.parquet")
    assert read_evaluation(EvaluationFile(name="e", path=tmp_path / "e.parquet", columns={"question": "text"})) == ["q?"]
    with pytest.raises(ConfigError, match="evaluation file 'e': no row"):
        read_evaluation(EvaluationFile(name="e", path=tmp_path / "e.parquet", columns={"question": "n"}))
