"""One of the things that are compared: a run, a run after some updates, or an evaluation of its own, read from its storage."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.figures import ComparedQuestion, RunCost, cost_of, scores_by_question, tokens_of
from nbrl.tasks.comparison.sigmoid import CurvePoint
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation import summary as summaries
from nbrl.tasks.evaluation.answers import answers_of
from nbrl.tasks.evaluation.scores import question_scores
from nbrl.tasks.evaluation.statistics import Estimate, estimate
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS, EvaluationLayout
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.runs.checkpoints import named
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import decisive
from nbrl.tasks.runs.epochs import without_passwords
from nbrl.tasks.runs.history import Record, check_unbroken, read_record
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.run import Run, find_run, unknown
from nbrl.tasks.tracking.steps import Steps

POLICY = "the initial policy's files"  # by their digest: two folders of one name may hold different models
SOURCE = "the source of environments."
DIGITS = 12


@dataclass(frozen=True)
class Evaluated:
    """An evaluation: the scores of its questions, and their mean. `updates` are those of the policy, None outside a run."""

    updates: int | None
    scores: dict[ComparedQuestion, float]
    estimate: Estimate


@dataclass(frozen=True)
class Side:
    """`label` is how it was named; `rollouts` and `held_out` are its curves over sampled tokens, empty outside a run."""

    label: str
    run: Run
    config: RunConfig
    final: Evaluated
    best: Evaluated
    cost: RunCost
    rollouts: tuple[CurvePoint, ...] = ()
    held_out: tuple[CurvePoint, ...] = ()

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """The same for two that end in the same evaluation."""
        return self.run.kind, self.run.name, self.final.updates


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
            there = ", ".join(str(each.updates) for each in held)
            raise ConfigError(f"run {run.name!r} has no evaluation after {updates} updates; it has those after {there}")
        records, held = records[: at[0].step], [each for each in held if each.step <= at[0].step]
    config = resumed_config(storage, run.name, ())
    final = held[-1]
    best = final if updates is not None else max(held, key=lambda each: (each.success, each.step))
    last = _evaluated(storage, run, final, config)
    spent = [0.0, *accumulate(map(tokens_of, records))]  # before each iteration, and at the end
    return Side(
        label=label,
        run=run,
        config=config,
        final=last,
        best=last if best is final else _evaluated(storage, run, best, config),
        cost=cost_of(records),
        rollouts=tuple(
            CurvePoint(tokens, record.metrics["reward/success"]) for tokens, record in zip(spent, records, strict=False)
        ),
        held_out=tuple(CurvePoint(spent[each.step], each.success) for each in held),
    )


def _evaluated(storage: Storage, run: Run, held: _Held, config: RunConfig) -> Evaluated:
    artifact, asked = held.result.artifact, stored.read(storage, run.layout.data, "held_out")
    trajectories = next(key for key in artifact.parts if is_trajectories(key))
    said, scored = (
        storage.read_table(key, digest)
        for key, digest in ((trajectories, artifact.parts[trajectories]), (artifact.path, artifact.digest))
    )
    return _scored(answers_of(said, scored, asked), asked, config.evaluate.mode, held.updates)


def _scored(answers: pa.Table, asked: pa.Table, mode: str, updates: int | None = None) -> Evaluated:
    by_id = question_scores(answers, mode)
    return Evaluated(updates, scores_by_question(answers, asked, mode), estimate(list(by_id.values())))


def _evaluation(storage: Storage, name: str) -> Side:
    layout = EvaluationLayout(name)
    if (run := find_run(storage, name, EVALUATIONS)) is None:
        raise MissingError(f"{storage.uri(layout.identity)} does not exist")
    if (summary := summaries.read(storage, name)) is None:
        raise ConfigError(f"evaluation {name!r} has not finished yet; the command that began it goes on with it")
    asked, answers = storage.read_table(layout.data.split("held_out")), storage.read_table(layout.answers)
    evaluated = _scored(answers, asked, summary.mode)
    cost = RunCost(
        iterations=None,
        trajectories=len(answers),
        sampled_tokens=sum(answers["sampled_tokens"].to_pylist()),
        seconds=_of_evaluation(summary.seconds),
        processor_seconds=_of_evaluation(summary.processor_seconds),
        gpu_seconds=_of_evaluation(summary.gpu_seconds),
    )
    return Side(name, run, resumed_config(storage, name, (), EVALUATIONS), evaluated, evaluated, cost)


def _of_evaluation(seconds: float) -> dict[str, float]:
    return {"evaluate": seconds} if seconds else {}


class Setting(ClosedModel):
    """The value of a key on each side, as JSON, None where it is not set. Only what `decides` makes another result."""

    key: str
    values: tuple[str | None, ...]
    decides: bool


def differing(sides: Sequence[Side], indifferent: bool) -> list[Setting]:
    """Return the settings that are not the same on all sides that have any; with `indifferent` also those that decide nothing."""
    deciding = {key for side in sides for key in _leaves(side, False)} | {POLICY}
    found = _differing([_leaves(side, indifferent) for side in sides]) | _differing([_digests(side) for side in sides])
    rows = [Setting(key=key, values=values, decides=key in deciding or key.startswith(SOURCE)) for key, values in found.items()]
    return sorted(rows, key=lambda setting: not setting.decides)


def _differing(sides: Sequence[dict[str, str] | None]) -> dict[str, tuple[str | None, ...]]:
    """Return the values of the keys in which those sides differ that are not None."""
    keys = dict.fromkeys(key for each in sides if each is not None for key in each)
    return {
        key: tuple(None if each is None else each.get(key) for each in sides)
        for key in keys
        if len({each.get(key) for each in sides if each is not None}) > 1
    }


def _leaves(side: Side, indifferent: bool) -> dict[str, str]:
    """Values as JSON by key."""
    values = decisive(side.config, indifferent)
    return {key: without_passwords(json.dumps(value, ensure_ascii=False)) for key, value in values.items()}


def _digests(side: Side) -> dict[str, str] | None:
    """Of files that the settings of a run only name."""
    if side.run.kind != RUNS:
        return None
    sources = {f"{SOURCE}{name}": code[:DIGITS] for name, code in side.run.sources.items()}
    return {POLICY: side.run.policy[:DIGITS], **sources}
