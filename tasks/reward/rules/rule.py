"""Which rule compares an answer with its references: each question names one."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from nbrl.tasks.reward.rules import choice, number, qa

Rule = Literal["qa", "number", "choice"]
QA = "qa"
Compare = Callable[[str, Sequence[str]], float]
# Whether the answer is right, and how much of it is.
_COMPARE: dict[str, tuple[Compare, Compare]] = {
    "qa": (qa.exact_match, qa.f1),
    "number": (number.equal, number.equal),
    "choice": (choice.equal, choice.equal),
}
# What an answer must be for the rule to compare it at all.
READ: dict[str, Callable[[str], object]] = {"qa": str, "number": number.quantity, "choice": choice.option}


class Judged(NamedTuple):
    """`exact`: 1 if the answer is right, else 0. `partial`: how much of it is, from 0 to 1."""

    exact: float
    partial: float


def judged(rule: str, answer: str | None, references: Sequence[str]) -> Judged:
    """Compare an answer with the references; the best reference counts. No answer is wrong."""
    if answer is None:
        return Judged(0.0, 0.0)
    exact, partial = _COMPARE[rule]
    return Judged(exact(answer, references), partial(answer, references))


def readable(rule: str, reference: str) -> bool:
    """Whether the rule can find any answer equal to this reference."""
    return READ[rule](reference) is not None
