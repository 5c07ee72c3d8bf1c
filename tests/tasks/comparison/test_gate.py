"""The champion's place is taken by what is better on the same questions, and worse in no ability."""

from typing import Any

import pytest

from nbrl.tasks.comparison.figures import ComparedQuestion
from nbrl.tasks.comparison.gate import judge_gain
from nbrl.tasks.comparison.scored import Side


def side(first: float, second: float, count: int = 40, tag: str = "") -> Side:
    """A side whose questions of two abilities are right in these shares."""
    made: Any = {"run": None, "config": None, "scored": None}
    questions = {ComparedQuestion(f"{tag}{number}", ()): 0.0 for number in range(2 * count)}
    abilities = {each: f"world/{'first' if number < count else 'second'}" for number, each in enumerate(questions)}
    for share, asked in ((first, list(questions)[:count]), (second, list(questions)[count:])):
        for each in asked[: round(share * count)]:
            questions[each] = 1.0
    return Side(**made, questions=questions, abilities=abilities)


def test_better_on_the_same_questions_takes_the_place() -> None:
    gate = judge_gain(side(0.5, 0.5), side(0.8, 0.5), 0.02)
    assert gate.against == []
    assert gate.gain is not None
    assert gate.gain.value == pytest.approx(0.15)
    assert {name: each.value for name, each in gate.by_ability.items()} == {
        "world/first": pytest.approx(0.3),
        "world/second": pytest.approx(0.0),
    }


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (side(0.5, 0.5), ["does not lie above 0"]),
        (side(0.525, 0.5), ["does not lie above 0"]),
        (side(1.0, 0.45), ["world/second is worse by 0.050, and 0.02 is allowed (40 questions)"]),
        (side(0.4, 0.4), ["does not lie above 0", "world/first is worse", "world/second is worse"]),
        (side(1.0, 1.0, tag="other "), ["were asked 0 questions in common, of 80"]),
        (side(1.0, 1.0, count=15), ["were asked 30 questions in common, of 80"]),
    ],
)
def test_what_is_against_it_is_said_in_full(candidate: Side, words: list[str]) -> None:
    against = judge_gain(side(0.5, 0.5), candidate, 0.02).against
    assert len(against) == len(words)
    assert all(word in said for word, said in zip(words, against, strict=True))


def test_an_ability_may_be_worse_by_the_margin() -> None:
    assert judge_gain(side(0.5, 0.5), side(1.0, 0.45), 0.05).against == []


def test_a_few_questions_are_no_proof() -> None:
    assert judge_gain(side(0.0, 0.0, count=9), side(1.0, 1.0, count=9), 0.02).against
    assert judge_gain(side(0.0, 0.0, count=10), side(1.0, 1.0, count=10), 0.02).against == []
