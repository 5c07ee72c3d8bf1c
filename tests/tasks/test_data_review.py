"""Questions that look wrong are warned of before work starts, with a count and examples."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.warnings import review


def write(path: Path, answers: list[list[str]], first: int = 0) -> Path:
    rows = [
        {"id": f"q{first + n}", "question": f"What is {first + n}?", "answers": each, "ability": "qa", "source": "s"}
        for n, each in enumerate(answers)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def warnings(folder: Path, train: list[list[str]], held_out: list[list[str]], *overrides: str, first: int = 100) -> list[str]:
    files = [
        f"environments.world.train={write(folder / 't.parquet', train)}",
        f"environments.world.held_out={write(folder / 'h.parquet', held_out, first)}",
    ]
    config = load(
        "tiny-cpu", ["environments.world.kind=files", *files, "rollout.prompts=1", "rollout.tools.default=[]", *overrides]
    )
    return review(Prepared.of(config, check_config(config)))


def test_good_questions_and_generated_ones_raise_no_warning(tmp_path: Path) -> None:
    assert warnings(tmp_path, [["42"], ["Ada Lovelace", "Lovelace"], ["Na"], ["∞"], ["#1"]], [["7"]]) == []
    assert review(Prepared.of(load("tiny-cpu"), check_config(load("tiny-cpu")))) == []


def test_questions_in_both_files_are_counted(tmp_path: Path) -> None:
    (said,) = warnings(tmp_path, [["1"], ["2"], ["3"]], [["2"], ["3"], ["4"]], first=1)
    assert said.startswith("2 of 3 held-out questions are training questions")
    assert "q1 ('What is 1?')" in said


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("6 * 7 = 42\n#### 42", "carry a solution"),
        (r"so it is \boxed{42}", "carry a solution"),
        ("word " * 40, "whole texts"),
        ("x" * 30_000, "longer than an agent's answer"),
        ("-", "missing values"),
        ("None", "missing values"),
        ("Answer: 42", "carry a solution"),
        ("the answer is 42", "carry a solution"),
        ("['x0', 'y0']", "lists or objects written as text"),
        ('["x"]', "lists or objects written as text"),
        ("('x0', 'y0')", "lists or objects written as text"),
        ("{'x0', 'y0'}", "lists or objects written as text"),
        ("[nan, 'y0']", "lists or objects written as text"),
        ("['x0' 'y0']", "lists or objects written as text"),
        ("array(['x0', 'y0'], dtype=object)", "lists or objects written as text"),
        ('{"text": "x"}', "lists or objects written as text"),
    ],
)
def test_answers_that_nobody_could_give_are_counted_with_an_example(tmp_path: Path, answer: str, words: str) -> None:
    (said,) = warnings(tmp_path, [[answer], ["7"], [answer, "42"]], [["1"]])  # one good reference is enough
    assert words in said
    assert said.startswith("environments.world.train: the answers of 1 of 3 questions")
    assert "for example q0 (" in said
    assert len(said) < 300


def test_a_question_all_of_whose_answers_are_suspicious_in_different_ways_is_counted(tmp_path: Path) -> None:
    (said,) = warnings(tmp_path, [["#### 42", "x" * 30_000]], [["1"]])
    assert "carry a solution" in said


def test_answers_that_compat_l0_takes_for_any_other_are_counted(tmp_path: Path) -> None:
    assert warnings(tmp_path, [["北京"]], [["1"]]) == []
    (said,) = warnings(tmp_path, [["北京"]], [["1"]], "reward.compat=l0")
    assert "no character of [a-z0-9]" in said


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("x.parquet", {"answers": ["42"]}, ""),
        ("x.parquet", {"answers": [[{"text": "42"}]]}, "column 'answers' is list<"),
        ("x.parquet", {"id": [7]}, ""),
        ("x.jsonl", {}, r"x\.jsonl cannot be read: .*; it must be one of \.parquet, \.jsonl, .*, as its name says"),
        ("x.parquet", {"ability": ["Q&A"]}, ""),
        ("x.parquet", {"ability": [" "]}, r"ability ' ' must be"),
    ],
)
def test_columns_and_files_of_another_kind_are_refused_with_what_to_do(
    tmp_path: Path, name: str, table: dict, words: str
) -> None:
    good = {"id": ["a"], "question": ["q?"], "answers": [["x"]], "ability": ["qa"], "source": ["s"]}
    pq.write_table(pa.table(good | table), tmp_path / name)
    held_out = write(tmp_path / "h.parquet", [["1"]], 5)
    config = load(
        "tiny-cpu",
        [
            "environments.world.kind=files",
            f"environments.world.train={tmp_path / name}",
            f"environments.world.held_out={held_out}",
            "rollout.prompts=1",
            "rollout.tools.default=[]",
        ],
    )
    if words:
        with pytest.raises(ConfigError, match=words):
            check_config(config)
    else:
        check_config(config)
