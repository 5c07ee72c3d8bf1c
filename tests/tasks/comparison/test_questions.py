"""A question is the same by its text and its references, not by its id."""

from collections.abc import Sequence
from typing import Any

import pytest

from nbrl.tasks.comparison.figures import paired, scores_by_question
from tests.tasks.comparison import made
from tests.tasks.comparison.made import QUESTIONS, answers, questions


def scores(right: Sequence[float], asked: Sequence[dict[str, Any]] = QUESTIONS) -> Any:
    return scores_by_question(answers(right, asked), questions(asked), "agent")


def test_the_same_questions_are_paired_under_other_ids() -> None:
    renamed = [{**row, "id": f"other-{row['id']}", "environment": "elsewhere"} for row in reversed(QUESTIONS)]
    pair = paired(("a", scores([1, 0, 0, 0])), ("b", scores([1, 1, 0, 1], renamed)))
    assert (pair.common, pair.other) == (4, (0, 0))
    assert pair.difference is not None
    assert pair.difference.value == 0.5  # 1, 0, 0, 0 becomes 1, 0, 1, 1
    assert pair.difference.low < 0.5 < pair.difference.high


@pytest.mark.parametrize("change", [{"question": "What?"}, {"answers": ["x"]}, {"reference": "{}"}])
def test_another_text_or_reference_is_another_question_though_the_id_is_the_same(change: dict[str, Any]) -> None:
    pair = paired(("a", scores([1, 0, 0, 0])), ("b", scores([0, 0, 0, 0], [{**QUESTIONS[0], **change}, *QUESTIONS[1:]])))
    assert (pair.common, pair.other) == (3, (1, 1))
    assert pair.difference is not None
    assert pair.difference.value == 0.0


def test_other_files_make_another_question() -> None:
    files = [[{"name": "a.csv", "digest": digest * 64}] for digest in "ab"]
    first, second = (scores([1.0], [{**QUESTIONS[0], "files": each}]) for each in files)
    assert paired(("a", first), ("b", second)).common == 0


def test_without_common_questions_nothing_is_paired() -> None:
    pair = paired(("a", scores([1, 1], QUESTIONS[:2])), ("b", scores([0, 0], QUESTIONS[2:])))
    assert (pair.common, pair.difference, pair.other) == (0, None, (2, 2))


def test_a_question_that_was_asked_under_two_ids_counts_once() -> None:
    twice = [QUESTIONS[0], {**QUESTIONS[0], "id": "again"}]
    assert list(scores([1, 0], twice).values()) == [0.5]


def test_the_vote_counts_where_samples_vote() -> None:
    assert made.answers([1, 0, 0, 0]).num_rows == 4
    assert set(scores_by_question(answers([1, 0, 0, 0]), questions(), "vote").values()) == {0.0, 1.0}
