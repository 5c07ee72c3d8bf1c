"""Grades asked of a real HTTP server, and kept by what was graded."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import RewardError
from nbrl.tasks.layout.runs import JUDGEMENTS
from nbrl.tasks.reward.judge.graded import graded
from nbrl.tasks.reward.judge.prompt import NEUTRAL, JudgedAnswer, grading_of
from nbrl.tasks.reward.judge.settings import JudgeSettings
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.rules.rule import judge
from tests.tasks.grader import Grader, grading

ASKED = JudgedAnswer("Which year?", ("1844",), "in 1844")
SETTINGS = JudgeSettings(base_url="https://host/v1", name="m")
GRADING = grading_of(SETTINGS)


def storage_in(folder: Path) -> Storage:
    return Storage(StorageSettings(root=str(folder / "storage")))


def rows(*answers: str | None, rule: str = "judge") -> pa.Table:
    made = [
        {"id": f"t{place}", "rule": rule, "question": "Which year?", "answers": ["1844"], "answer": answer, "reference": ""}
        for place, answer in enumerate(answers)
    ]
    return pa.Table.from_pylist(made)


def settings_for(server: Grader, **change: Any) -> JudgeSettings:
    return JudgeSettings.model_validate({"base_url": server.url, "name": "m", "key": None} | change)


def asked_of(server: Grader, folder: Path, table: pa.Table, **change: Any) -> list[dict[str, Any]]:
    """The rows as the server graded them."""
    settings = settings_for(server, **change)
    found: list[dict[str, Any]] = asyncio.run(graded(table, settings, storage_in(folder), lambda _: None)).to_pylist()
    return found


def shown(judged: Sequence[Judged]) -> list[tuple[float, float, float]]:
    """Whether each is right and partly right, and the share that was not attempted."""
    return [(each.exact, each.partial, dict(each.facets)["not_attempted"]) for each in judged]


def test_three_grades_become_a_score_and_facets(tmp_path: Path) -> None:
    with grading() as server:
        found = asked_of(server, tmp_path, rows("1844", "1845", "no idea", None, " "))
        assert server.answers == ["1844", "1845", "no idea"]
    assert [row["grade"] for row in found] == ["CORRECT", "INCORRECT", "NOT_ATTEMPTED", "", ""]
    judged = judge(found)
    assert shown(judged) == [(1.0, 1.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, 1.0)]
    assert [dict(each.facets)["correct"] for each in judged] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert {each.fault for each in judged} == {""}


def test_a_request_is_deterministic_and_has_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    with grading() as server:
        asked_of(server, tmp_path, rows("1844"), key="JUDGE_KEY", max_tokens=77)
        (body,), (head,) = server.bodies, server.heads
    assert (body["model"], body["temperature"], body["seed"], body["max_tokens"]) == ("m", 0.0, 0, 77)
    assert head["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in "".join(path.read_text() for path in (tmp_path / "storage").rglob("*.json"))


def test_equal_answers_are_asked_once_and_what_is_stored_never_again(tmp_path: Path) -> None:
    with grading() as server:
        first = asked_of(server, tmp_path, rows("1844", "1845", "1844"))
        assert server.answers == ["1844", "1845"]
        again = asked_of(server, tmp_path, rows("1845", "1846", "1844", "1844"), timeout_s=9.0, attempts=1, concurrency=1)
        assert server.answers == ["1844", "1845", "1846"]
    assert [row["grade"] for row in first] == ["CORRECT", "INCORRECT", "CORRECT"]
    assert [row["grade"] for row in again] == ["INCORRECT", "INCORRECT", "CORRECT", "CORRECT"]


def test_requests_at_once_are_bounded(tmp_path: Path) -> None:
    with grading() as server:
        asked_of(server, tmp_path, rows(*map(str, range(20))), concurrency=3)
        assert len(server.bodies) == 20
        assert 1 <= server.most_at_once <= 3


def test_another_rule_asks_nobody(tmp_path: Path) -> None:
    with grading() as server:
        (row,) = asked_of(server, tmp_path, rows("1844", rule="qa"))
        assert server.bodies == []
    assert (row["grade"], row["ungraded"]) == ("", "")
    (row,) = asyncio.run(graded(rows("1844"), None, storage_in(tmp_path), lambda _: None)).to_pylist()
    assert judge([row])[0].fault == "no model has graded it"


def test_an_answer_that_alone_gets_no_grade_is_incorrect_and_that_is_kept(tmp_path: Path) -> None:
    with grading() as server:
        found = asked_of(server, tmp_path, rows("twice", "never", "long", "refused", NEUTRAL))
        assert [server.answers.count(answer) for answer in ("twice", "never", "long", "refused")] == [2, 2, 2, 1]
    assert [(row["grade"], row["ungraded"]) for row in found] == [("INCORRECT", "")] * 5
    assert len(storage_in(tmp_path).list(JUDGEMENTS)) == 5
    (kept,) = GRADING.find(storage_in(tmp_path), [JudgedAnswer("Which year?", ("1844",), "refused")]).values()
    assert kept == "INCORRECT"


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("never", "m gave no grade in 2 replies; the last ends with 'GRADE: INCORRECT\\nGRADE: CORRECT'"),
        ("long", "(cut at reward.judge.max_tokens 5)"),
        ("refused", "answered 400"),
    ],
)
def test_a_question_of_which_no_answer_gets_a_grade_is_a_fault(word: str, words: str, tmp_path: Path) -> None:
    asked = pa.Table.from_pylist([*rows("1845").to_pylist(), *rows(*"23456").to_pylist()])
    asked = asked.set_column(2, "question", pa.array([f"Which {word} year?", *["Which year?"] * 5]))
    with grading() as server:
        found = asked_of(server, tmp_path, asked, max_tokens=5)
    assert words in found[0]["ungraded"]
    judged = judge(found)
    assert judged[0].fault == found[0]["ungraded"]
    assert (judged[0].exact, judged[0].facets) == (0.0, ())
    assert len(storage_in(tmp_path).list(JUDGEMENTS)) == 5  # what could not be graded is not kept, and is asked again


def test_a_server_that_is_busy_is_asked_again_and_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    with grading() as server:
        server.broken = 3
        table = rows("1844", "1845", "1846")
        done = asyncio.run(graded(table, settings_for(server), storage_in(tmp_path), said.append))
    assert done["grade"].to_pylist() == ["CORRECT", "INCORRECT", "INCORRECT"]
    assert [text.partition(";")[0] for text in said] == ["the model server answered 503"]


def test_too_many_failures_end_it_and_the_grades_so_far_are_kept(tmp_path: Path) -> None:
    with grading() as server:
        table = rows("1844", *map(str, range(42)))
        table = table.set_column(2, "question", pa.array(["Which year?", *["Which refused year?"] * 42]))
        with pytest.raises(
            RewardError, match=r"scorers failed on \d+ of 43 trajectories, of which 20% are allowed; the first says:"
        ):
            asked_of(server, tmp_path, table, concurrency=1)
        assert len(server.answers) < 24  # it does not ask on until all have failed
    assert list(GRADING.find(storage_in(tmp_path), [JudgedAnswer("Which year?", ("1844",), "1844")]).values()) == ["CORRECT"]


def test_a_key_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with grading() as server:
        with pytest.raises(
            RewardError, match=r"reward\.judge\.key: the environment variable JUDGE_KEY holds no usable key; set it"
        ):
            asked_of(server, tmp_path, rows("1844"), key="JUDGE_KEY")
        assert server.bodies == []


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        (ASKED._replace(question="Which day?"), {}),
        (ASKED._replace(references=("1844", "in 1844")), {}),
        (ASKED._replace(answer="1844"), {}),
        (JudgedAnswer("Which year?1844", (), "in 1844"), {}),
        (ASKED, {"name": "other"}),
        (ASKED, {"max_tokens": 9}),
        (ASKED, {"rubric": "{question} {references} {answer}"}),
    ],
)
def test_whatever_decides_a_grade_is_in_its_key(asked: JudgedAnswer, change: dict[str, Any]) -> None:
    assert grading_of(SETTINGS.model_copy(update=change)).key(asked) != GRADING.key(ASKED)


@pytest.mark.parametrize(
    "change", [{"base_url": "http://other"}, {"key": None}, {"timeout_s": 1.0}, {"concurrency": 1}, {"attempts": 5}]
)
def test_whatever_does_not_decide_a_grade_is_not_in_its_key(change: dict[str, Any]) -> None:
    key = grading_of(SETTINGS.model_copy(update=change)).key(ASKED)
    assert key == GRADING.key(ASKED)
    folder, first, name = key.split("/")
    assert (folder, first, len(name)) == ("judgements", name[:2], 64 + len(".json"))


def test_of_two_processes_the_first_grade_counts(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    assert GRADING.keep(storage, ASKED, "CORRECT", "GRADE: CORRECT") == "CORRECT"
    before = storage.read_bytes(GRADING.key(ASKED))
    assert GRADING.keep(storage, ASKED, "INCORRECT", "GRADE: INCORRECT") == "CORRECT"
    assert storage.read_bytes(GRADING.key(ASKED)) == before
    kept = storage.read_json(GRADING.key(ASKED))
    assert (kept["grade"], kept["model"], kept["reply"], len(kept["rubric"])) == ("CORRECT", "m", "GRADE: CORRECT", 64)


def test_a_grade_that_is_damaged_is_not_read(tmp_path: Path) -> None:
    storage = storage_in(tmp_path)
    GRADING.keep(storage, ASKED, "INCORRECT", "GRADE: INCORRECT")
    whole = storage.read_bytes(GRADING.key(ASKED))
    storage.write_bytes(GRADING.key(ASKED), whole.replace(b'"INCORRECT"', b'"CORRECT"'))
    with pytest.raises(DamagedError):
        GRADING.find(storage, [ASKED])
