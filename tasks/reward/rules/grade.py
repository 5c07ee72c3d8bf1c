"""A model's grade of an answer as a score: pure, for the grade was found before (`reward/judge`)."""

from collections.abc import Mapping
from typing import Any

from nbrl.tasks.reward.rules.judged import Judged

RULE = "judge"
CORRECT, INCORRECT, NOT_ATTEMPTED = GRADES = ("CORRECT", "INCORRECT", "NOT_ATTEMPTED")
NOBODY = "no model has graded it"


def score(answer: str | None, row: Mapping[str, Any]) -> Judged:
    """What the row's `grade` says, or the fault that its `ungraded` says; no answer was not attempted, whatever they say.

    The facets are the shares of SimpleQA (arXiv 2411.04368).
    """
    if answer is None:
        return Judged(0.0, 0.0, facets=_facets(NOT_ATTEMPTED))
    grade = row["grade"]
    if grade not in GRADES:
        return Judged(0.0, 0.0, fault=row["ungraded"] or NOBODY)
    right = float(grade == CORRECT)
    return Judged(right, right, facets=_facets(grade))


def _facets(grade: str) -> tuple[tuple[str, float], ...]:
    return ("correct", float(grade == CORRECT)), ("not_attempted", float(grade == NOT_ATTEMPTED))
