"""Reads scores and costs of a run, a run after some updates, or an evaluation of its own from its storage."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import pyarrow as pa

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.figures import ComparedQuestion, RunCost, abilities_by_question, cost_of, scores_by_question, tokens_of
from nbrl.tasks.comparison.sigmoid import LEAST, CurvePoint, Fit, fit
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation import summary as summaries
from nbrl.tasks.evaluation.answers import answers_of_result
from nbrl.tasks.evaluation.scores import question_scores
from nbrl.tasks.evaluation.statistics import estimate
from nbrl.tasks.evaluation.summary import Estimate
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS, EvaluationLayout
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record, check_unbroken, read_record
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.run import Run, find_run, named, unknown
from nbrl.tasks.tracking.steps import Steps


class HeldOutScore(ClosedModel):
    """A held-out score after some updates, which are None for an evaluation of its own."""

    updates: int | None
    estimate: Estimate


class Scored(ClosedModel):
    """Scores and costs of one of them; `label` is the name it was given.

    `rollouts` and `held_out` are its curves over sampled tokens, empty outside a run; `fitted` is the one that `fit` is of.
    """

    label: str
    kind: Literal["runs", "evaluations"]
    final: HeldOutScore
    best: HeldOutScore
    cost: RunCost
    rollouts: tuple[CurvePoint, ...] = ()
    held_out: tuple[CurvePoint, ...] = ()
    fitted: Literal["held-out", "rollouts", ""] = ""
    fit: Fit | None = None


@dataclass(frozen=True)
class Side:
    """`questions` are the scores of the questions of its final evaluation, `abilities` what they ask for."""

    run: Run
    config: RunConfig
    scored: Scored
    questions: dict[ComparedQuestion, float]
    abilities: dict[ComparedQuestion, str]

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """Return a key that is equal for two sides that end in the same evaluation."""
        return self.run.kind, self.run.name, self.scored.final.updates


class _Held(NamedTuple):
    """A held-out evaluation of a run, after `step` iterations."""

    step: int
    updates: int
    result: NodeResult

    @property
    def success(self) -> float:
        return self.result.artifact.values["success"]


def read(storage: Storage, label: str) -> Side:
    """Return what RUN, RUN@N or the name of an evaluation names; a run of that name goes first.

    Raises ConfigError if there is nothing of that name or nothing was evaluated, and MissingError or DamagedError where its files
    are not those that were written.
    """
    name, updates = named(label)
    try:
        if (run := find_run(storage, name)) is not None:
            return _run(storage, label, run, updates)
        if storage.list(EvaluationLayout(name).folder):
            if updates is not None:
                raise ConfigError(f"{name!r} is an evaluation, which has no updates; name it without @{updates}")
            return _evaluation(storage, name)
    except MissingError as error:
        raise MissingError(f"{label!r} cannot be compared: {error}; bring the file back from a copy") from error
    except KeyError as error:
        raise DamagedError(f"{label!r} lacks {error} in its tables: they are not what was written there") from error
    raise unknown(storage, name, RUNS, EVALUATIONS)


def _run(storage: Storage, label: str, run: Run, updates: int | None) -> Side:
    check_unbroken(storage, run)
    steps, records = Steps(run), list[Record]()
    while (record := read_record(storage, run, len(records))) is not None:
        steps.add(record)
        records.append(record)
    held = [_Held(step, weights.updates, result) for step, weights, result in steps.evaluations(storage, ())]
    if not held:
        raise ConfigError(f"run {run.name!r} has no finished evaluation yet, so there is nothing to compare")
    if updates is not None:
        at = [each for each in held if each.updates == updates]
        if not at:
            numbers = ", ".join(str(each.updates) for each in held)
            raise ConfigError(f"run {run.name!r} has no evaluation after {updates} updates; it has those after {numbers}")
        records, held = records[: at[0].step], [each for each in held if each.step <= at[0].step]
    config, asked = resumed_config(storage, run.name, ()), stored.read(storage, run.layout.data, "held_out")

    def answers(one: _Held) -> pa.Table:
        return answers_of_result(storage, one.result.artifact, asked)

    def scored(one: _Held) -> tuple[HeldOutScore, dict[ComparedQuestion, float]]:
        return _scored(answers(one), asked, config.evaluate.mode, one.updates)

    best = held[-1] if updates is not None else max(held, key=lambda each: (each.success, each.step))
    final, questions = scored(held[-1])
    spent = [0.0, *accumulate(map(tokens_of, records))]  # before each iteration, and at the end
    rollouts = tuple(CurvePoint(tokens, record.metrics["reward/success"]) for tokens, record in zip(spent, records, strict=False))
    held_out = tuple(CurvePoint(spent[each.step], each.success) for each in held)
    found = Scored(
        label=label,
        kind="runs",
        final=final,
        best=final if best is held[-1] else scored(best)[0],
        cost=cost_of(records),
        rollouts=rollouts,
        held_out=held_out,
    )
    if rollouts:
        fitted = "held-out" if len(held_out) >= LEAST else "rollouts"
        found = found.model_copy(update={"fitted": fitted, "fit": fit(held_out if fitted == "held-out" else rollouts)})
    return Side(run, config, found, questions, abilities_by_question(answers(held[-1]), asked))


def _scored(
    answers: pa.Table, asked: pa.Table, mode: str, updates: int | None = None
) -> tuple[HeldOutScore, dict[ComparedQuestion, float]]:
    score = HeldOutScore(updates=updates, estimate=estimate(list(question_scores(answers, mode).values())))
    return score, scores_by_question(answers, asked, mode)


def _evaluation(storage: Storage, name: str) -> Side:
    layout = EvaluationLayout(name)
    if (run := find_run(storage, name, EVALUATIONS)) is None:
        raise MissingError(f"{storage.uri(layout.identity)} does not exist")
    if (summary := summaries.read(storage, name)) is None:
        raise ConfigError(f"evaluation {name!r} has not finished yet; the command that began it goes on with it")
    asked, answers = storage.read_table(layout.data.split("held_out")), storage.read_table(layout.answers)
    score, questions = _scored(answers, asked, summary.mode)
    cost = RunCost(
        iterations=None,
        trajectories=len(answers),
        sampled_tokens=sum(answers["sampled_tokens"].to_pylist()),
        seconds=_of_evaluation(summary.seconds),
        processor_seconds=_of_evaluation(summary.processor_seconds),
        gpu_seconds=_of_evaluation(summary.gpu_seconds),
    )
    scored = Scored(label=name, kind="evaluations", final=score, best=score, cost=cost)
    abilities = abilities_by_question(answers, asked)
    return Side(run, resumed_config(storage, name, (), EVALUATIONS), scored, questions, abilities)


def _of_evaluation(seconds: float) -> dict[str, float]:
    return {"evaluate": seconds} if seconds else {}
