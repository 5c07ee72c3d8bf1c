"""Scores of an evaluation: over all questions, over those of each environment, and over those of each of its abilities."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nbrl.agent.trajectory import Status
from nbrl.tasks.evaluation.statistics import estimate, pass_at
from nbrl.tasks.evaluation.summary import Scores
from nbrl.tasks.reward.rules.qa import normalise

Row = Mapping[str, Any]
Samples = Sequence[Row]
"""The rows of one question, by sample."""


def by_question(answers: pa.Table) -> dict[str, Samples]:
    """Return the rows of each question, in the order in which the questions were asked.

    Trajectories that failed for the infrastructure say nothing about the policy and are left out.
    """
    grouped: dict[str, list[Row]] = {}
    for row in answers.to_pylist():
        if row["status"] == Status.FAILED:
            continue
        grouped.setdefault(row["question_id"], []).append(row)
    return {name: sorted(rows, key=lambda row: row["sample"]) for name, rows in grouped.items()}


def scores(answers: pa.Table) -> list[Scores]:
    """Return the scores over all questions first, then those of each environment followed by those of its abilities."""
    questions = list(by_question(answers).values())
    result = [_scores(questions)]
    environments = list(dict.fromkeys(samples[0]["environment"] for samples in questions))
    for environment in environments:
        of_it = [samples for samples in questions if samples[0]["environment"] == environment]
        abilities = sorted({samples[0]["ability"] for samples in of_it})
        if len(environments) > 1:
            result.append(_scores(of_it, environment))
        if len(abilities) > 1:
            result += [_scores([s for s in of_it if s[0]["ability"] == ability], environment, ability) for ability in abilities]
    return result


def _scores(questions: Sequence[Samples], environment: str = "", ability: str = "") -> Scores:
    count = max((len(samples) for samples in questions), default=1)
    several = [k for k in _powers(count) if k > 1]
    return Scores(
        environment,
        ability,
        len(questions),
        estimate([success(samples) for samples in questions]),
        estimate([_mean(samples, "f1") for samples in questions]),
        {k: estimate([pass_at(len(samples), _right(samples), k) for samples in questions if len(samples) >= k]) for k in several},
        estimate([majority(samples) for samples in questions]) if count > 1 else None,
    )


def success(samples: Samples) -> float:
    """Return the share of a question's samples that are right."""
    return _mean(samples, "success")


def majority(samples: Samples) -> float:
    """Return the success of the answer that most samples give, the first of several; a sample without an answer has no vote.

    Answers are equal after the normalisation of question answering. If no sample answered, the question counts as wrong.
    """
    votes = [(normalise(row["answer"]), row["success"]) for row in samples if row["answer"] and row["answer"].strip()]
    if not votes:
        return 0.0
    winner, _ = Counter(vote for vote, _ in votes).most_common(1)[0]
    return next(success for vote, success in votes if vote == winner)


def question_scores(answers: pa.Table, mode: str) -> dict[str, float]:
    """Return the score of each question that counts in this mode, by the question's id."""
    score: Callable[[Samples], float] = majority if mode == "vote" else success
    return {name: score(samples) for name, samples in by_question(answers).items()}


def metrics(found: Sequence[Scores], mode: str) -> dict[str, float]:
    """Return the scores as metrics: `success`, `success_low`, `pass@2`, …, each of an environment or ability below its label."""
    values: dict[str, float] = {}
    for each in found:
        suffix = "" if each.label == "all" else f"/{each.label}"
        named = {"success": each.headline(mode), "f1": each.f1} | {f"pass_at_{k}": value for k, value in each.pass_at.items()}
        if each.majority is not None:
            named["majority"] = each.majority
        for name, value in named.items():
            values[f"{name}{suffix}"] = value.value
        values[f"success_low{suffix}"], values[f"success_high{suffix}"] = each.headline(mode).low, each.headline(mode).high
        values[f"questions{suffix}"] = float(each.questions)
    return values


def _mean(samples: Samples, column: str) -> float:
    return sum(row[column] for row in samples) / len(samples)


def _right(samples: Samples) -> int:
    return sum(row["success"] >= 1 for row in samples)


def _powers(count: int) -> list[int]:
    """Return 1, 2, 4, … up to `count`, which is the last."""
    powers = [1]
    while powers[-1] * 2 < count:
        powers.append(powers[-1] * 2)
    return powers if count == 1 else [*powers, count]
