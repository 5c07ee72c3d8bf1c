"""Compares an answer with its references by the rule that its question names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from nbrl.tasks.reward.rules import choice, confined, files, gaia, maths, number, outcome, own, qa
from nbrl.tasks.reward.rules.code import judge as code
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.rules.marks import INVISIBLE

RULE = "judge"
CORRECT, INCORRECT, NOT_ATTEMPTED = GRADES = ("CORRECT", "INCORRECT", "NOT_ATTEMPTED")
UNGRADED = "no model has graded it"
Rule = Literal["qa", "number", "choice", "math", "files", "judge", "code", "gaia"]
RULES: tuple[str, ...] = get_args(Rule)
QA, GYM, OWN, FILES, JUDGE, CODE = "qa", "reasoning_gym", own.RULE, "files", RULE, "code"
WORLD, OUTCOME = "world", "outcome"
OF_CLASSES = (OWN, WORLD)  # rules by which a class of one's own scores
OF_SESSIONS = (WORLD, OUTCOME)  # rules of questions whose trajectories have a session
CONFINED = ("math", GYM, *OF_CLASSES, CODE)
NO_ANSWERS = (GYM, *OF_CLASSES, OUTCOME, FILES, CODE)  # rules whose questions may have no accepted answers
RIGHT = 0.99  # a score from which an answer is right; some tasks of reasoning-gym pay less for what is nearly right
Compare = Callable[[str, Sequence[str]], float]
# Whether the answer is right, and how much of it is.
_COMPARE: dict[str, tuple[Compare, Compare]] = {
    "qa": (qa.exact_match, qa.f1),
    "number": (number.equal, number.equal),
    "choice": (choice.equal, choice.equal),
    "gaia": (gaia.equal, gaia.equal),
}


def graded(answer: str | None, row: Mapping[str, Any]) -> Judged:
    """Return the verdict of the row's `grade`, or the fault of its `ungraded`; a missing answer was not attempted, in any case.

    The facets are the shares of SimpleQA (arXiv 2411.04368).
    """
    if answer is None:
        return Judged(0.0, 0.0, facets=_facets(NOT_ATTEMPTED))
    grade = row["grade"]
    if grade not in GRADES:
        return Judged(0.0, 0.0, fault=row["ungraded"] or UNGRADED)
    right = float(grade == CORRECT)
    return Judged(right, right, facets=_facets(grade))


def _facets(grade: str) -> tuple[tuple[str, float], ...]:
    return ("correct", float(grade == CORRECT)), ("not_attempted", float(grade == NOT_ATTEMPTED))


def given(answer: str | None) -> str | None:
    """Return the answer, if it says anything."""
    return answer if answer and answer.strip() else None


def judge(rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Compare the `answer` of each row with its `answers` and `reference` by its `rule`; the best one counts.

    By the rule `judge` the row's `grade` decides, which a model gave before. A missing answer is wrong, unless files are compared
    or an environment of one's own scores what was done. Raises RewardError if a rule's package cannot be used.
    """
    judged = [Judged(0.0, 0.0)] * len(rows)
    rows = [_visible(row) if row["rule"] not in NO_ANSWERS else row for row in rows]
    for place, row in enumerate(rows):
        if (answer := given(row["answer"])) and row["rule"] in _COMPARE:
            exact, partial = _COMPARE[row["rule"]]
            judged[place] = Judged(exact(answer, row["answers"]), partial(answer, row["answers"]))
        elif row["rule"] == FILES:
            judged[place] = files.judge({file["path"]: file["data"] for file in row["files"]}, row["reference"])
        elif row["rule"] == OUTCOME:
            judged[place] = outcome.judge(row["outcome"] or "", len(row["steps"]))
        elif row["rule"] == JUDGE:
            judged[place] = graded(answer, row)
    for rule in CONFINED:
        places = [place for place, row in enumerate(rows) if row["rule"] == rule and (rule in OF_CLASSES or given(row["answer"]))]
        for place, score in zip(places, _confined(rule, [rows[place] for place in places]), strict=True):
            judged[place] = score
    return judged


def _visible(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row without the invisible signs of its texts, which copied text is full of."""
    answer = row["answer"] and INVISIBLE.sub("", row["answer"])
    return {**row, "answer": answer, "answers": [INVISIBLE.sub("", each) for each in row["answers"]]}


def _confined(rule: str, rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    match rule:
        case "own" | "world":
            return own.scores(rows)
        case "code":
            return code.scores(rows)
        case "math":
            return [Judged(score, score) for score in maths.scores(rows)]
    return _gym(rows)


def _gym(rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Judge by the scorers of a package that is not ours. An answer that it cannot compare, or not in time, is wrong."""
    comparisons = [{name: row[name] for name in ("answer", "answers", "reference")} for row in rows]
    scores = [_number(done.get("score")) for done in confined.compare(GYM, comparisons)]
    return [Judged(float(score >= RIGHT), score) for score in scores]


def _number(score: object) -> float:
    """Return the score from 0 to 1; 0 for anything else, since the answer may have influenced it."""
    return float(score) if isinstance(score, int | float) and 0 <= score <= 1 else 0.0


def readable(rule: str, reference: str) -> bool:
    """Return whether the rule finds the reference equal at least to itself; by `math` and `qa` every text is."""
    return rule not in ("number", "choice", "gaia") or _COMPARE[rule][0](reference, [reference]) == 1.0
