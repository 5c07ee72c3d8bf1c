"""Which rule compares an answer with its references: each question names one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nbrl.tasks.reward.rules import choice, confined, number, qa

Rule = Literal["qa", "number", "choice", "math"]
QA, GYM = "qa", "reasoning_gym"
CONFINED = ("math", GYM)
RIGHT = 0.99  # a score from which an answer is right; some tasks of reasoning-gym pay less for what is nearly right
Compare = Callable[[str, Sequence[str]], float]
# Whether the answer is right, and how much of it is.
_COMPARE: dict[str, tuple[Compare, Compare]] = {
    "qa": (qa.exact_match, qa.f1),
    "number": (number.equal, number.equal),
    "choice": (choice.equal, choice.equal),
}
# What a reference must be for the rule to find any answer equal to it.
_READ: dict[str, Callable[[str], object]] = {"number": number.quantity, "choice": choice.option}


class Judged(NamedTuple):
    """`exact`: 1 if the answer is right, else 0. `partial`: how much of it is, from 0 to 1."""

    exact: float
    partial: float


def given(answer: str | None) -> str | None:
    """The answer, if it says anything."""
    return answer if answer and answer.strip() else None


def judge(rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Compare the `answer` of each row with its `answers` and `reference` by its `rule`; the best one counts. No answer is wrong.

    Raises RewardError if a rule's package cannot be used.
    """
    judged = [Judged(0.0, 0.0)] * len(rows)
    for place, row in enumerate(rows):
        if (answer := given(row["answer"])) and row["rule"] in _COMPARE:
            exact, partial = _COMPARE[row["rule"]]
            judged[place] = Judged(exact(answer, row["answers"]), partial(answer, row["answers"]))
    for rule in CONFINED:
        places = [place for place, row in enumerate(rows) if row["rule"] == rule and given(row["answer"])]
        compared = [{name: rows[place][name] for name in ("answer", "answers", "reference")} for place in places]
        for place, score in zip(places, confined.compare(rule, compared), strict=True):
            judged[place] = Judged(float(score >= RIGHT), score)
    return judged


def readable(rule: str, reference: str) -> bool:
    """Whether the rule can find any answer equal to this reference."""
    return rule not in _READ or _READ[rule](reference) is not None
