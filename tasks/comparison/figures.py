"""Figures that runs are compared by: what they cost, and their success question by question."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from nbrl.infra.closed import ClosedModel
from nbrl.tasks.evaluation.answers import question_id
from nbrl.tasks.evaluation.scores import question_scores
from nbrl.tasks.evaluation.statistics import Difference, difference
from nbrl.tasks.runs.history import Record

NOT_NODES = ("overhead", "overhead_share")


class ComparedQuestion(NamedTuple):
    """The identity of a question, whatever its id is: its text, its references, and the files with it."""

    text: str
    references: tuple[str, ...]
    reference: str = ""
    files: tuple[str, ...] = ()


class Pair(ClosedModel):
    """The second less the first on their `common` questions; no difference where there are none. `other` are the rest of each."""

    first: str
    second: str
    common: int
    other: tuple[int, int]
    difference: Difference | None


def scores_by_question(answers: pa.Table, asked: pa.Table, mode: str) -> dict[ComparedQuestion, float]:
    """Return the score of each question that counts in this mode; `asked` are the questions as the evaluation had them.

    One that was asked under two ids has the mean of both.
    """
    rows = {question_id(row["environment"], row["id"]): row for row in asked.to_pylist()}
    texts = {row["question_id"]: row for row in answers.select(["question_id", "question", "references"]).to_pylist()}
    found: dict[ComparedQuestion, list[float]] = {}
    for name, score in question_scores(answers, mode).items():
        found.setdefault(_question(texts[name], rows.get(name, {})), []).append(score)
    return {question: sum(scores) / len(scores) for question, scores in found.items()}


def abilities_by_question(answers: pa.Table, asked: pa.Table) -> dict[ComparedQuestion, str]:
    """Return the environment and the ability of each question, as one label; of one with several the last."""
    rows = {question_id(row["environment"], row["id"]): row for row in asked.to_pylist()}
    columns = ["question_id", "question", "references", "environment", "ability"]
    return {
        _question(row, rows.get(row["question_id"], {})): f"{row['environment']}/{row['ability']}"
        for row in answers.select(columns).to_pylist()
    }


def _question(answered: Mapping[str, Any], asked: Mapping[str, Any]) -> ComparedQuestion:
    files = tuple(sorted(f"{file['name']} {file['digest']}" for file in asked.get("files") or ()))
    references = tuple(sorted(answered["references"] or ()))
    return ComparedQuestion(answered["question"], references, asked.get("reference") or "", files)


def paired(first: tuple[str, Mapping[ComparedQuestion, float]], second: tuple[str, Mapping[ComparedQuestion, float]]) -> Pair:
    """Return the paired bootstrap over the questions that both have; each side is its label and its scores."""
    one, two = first[1], second[1]
    common = sorted(one.keys() & two.keys())
    found = difference([one[each] for each in common], [two[each] for each in common]) if common else None
    rest = (len(one) - len(common), len(two) - len(common))
    return Pair(first=first[0], second=second[0], common=len(common), other=rest, difference=found)


class RunCost(ClosedModel):
    """Wall, processor and GPU seconds are by node; `iteration` is the wall time of whole iterations.

    Held-out evaluations of a run are not in it.
    """

    iterations: int | None
    trajectories: int
    sampled_tokens: int
    seconds: dict[str, float]
    processor_seconds: dict[str, float]
    gpu_seconds: dict[str, float]


def cost_of(records: Sequence[Record]) -> RunCost:
    """Return the cost of these iterations."""
    return RunCost(
        iterations=len(records),
        trajectories=int(sum(record.metrics.get("rollout/trajectories", 0.0) for record in records)),
        sampled_tokens=int(sum(map(tokens_of, records))),
        seconds=_by_node(records, "time/"),
        processor_seconds=_by_node(records, "cpu/"),
        gpu_seconds=_by_node(records, "gpu/"),
    )


def tokens_of(record: Record) -> float:
    """Return the number of tokens that the policy sampled in an iteration, in all its rounds."""
    return record.metrics.get("rollout/sampled_tokens", 0.0)


def _by_node(records: Iterable[Record], prefix: str) -> dict[str, float]:
    costs: dict[str, float] = {}
    for record in records:
        for name, value in record.metrics.items():
            node = name.removeprefix(prefix)
            if name.startswith(prefix) and node not in NOT_NODES:
                costs[node] = costs.get(node, 0.0) + value
    return costs
