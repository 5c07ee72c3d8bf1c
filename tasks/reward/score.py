"""Scores one trajectory with a pure function, on the host, after its end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from nbrl.agent.settings import Credit
from nbrl.infra.parts import joined
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import RewardError
from nbrl.tasks.reward import l0
from nbrl.tasks.reward.judge.settings import GRADES, NEEDED
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.rules.rule import FILES, QA, given, judge
from nbrl.tasks.reward.settings import RewardSettings

TOLERANCE, FACTOR = 0.2, 0.5
MIN_THINK, MIN_CODE = 10, 5
COLUMNS = ["id", "group", "ability", "status", "question", "answer", "steps", "files", "outcome", "children"]
MAX_UNSCORED = 0.2  # of a round's trajectories; if scorers fail on more, they are at fault and not the trajectories


def format_of(step: Mapping[str, Any]) -> float:
    """Return 1 for a well-formed action that thinks in more than 10 characters and codes in more than 5, else 0.

    A summary is well-formed when it is not empty, the reply to a program whatever it says.
    """
    if step["kind"] == "reply":
        return 1.0
    if step["kind"] == "summary":
        return float(not step["malformed"])
    return float(not step["malformed"] and len(step["think"].strip()) > MIN_THINK and len(step["code"].strip()) > MIN_CODE)


def execution_of(step: Mapping[str, Any]) -> float:
    """Share of a cell's outputs that are not errors; a silent cell that succeeded earns 1, a step without a cell 0."""
    outputs = step["outputs"]
    if step["cell_status"] not in ("ok", "error") or not outputs:
        return float(step["cell_status"] == "ok")
    return 1.0 - sum(output["kind"] == "error" for output in outputs) / len(outputs)


def thought_length(step: Mapping[str, Any], target: int | None) -> float:
    """Return the length facet of a cell's thought; 0 without a target length."""
    return length_of(step["think"], target) if target is not None and step["kind"] == "cell" else 0.0


def length_of(text: str, target: int) -> float:
    """Return 1 within TOLERANCE of `target` words, and FACTOR less for each further `target` words off, never below 0.

    The tolerance and the factor are L0's; using the factor as the slope, and measuring a step's thought, are choices of nbrl.
    """
    off = abs(len(text.split()) - target) / target
    return max(0.0, 1.0 - FACTOR * max(0.0, off - TOLERANCE))


class StepFacet(NamedTuple):
    """A reward of a step beside the answer, times the weight of the same name in the settings.

    `earned` is from 0 to 1; the weight is divided by the number of the trajectory's steps, or of those that ran a cell.
    """

    earned: Callable[[Mapping[str, Any], RewardSettings], float]
    divided_by: Literal["steps", "cells"]


STEP_FACETS = {
    "format": StepFacet(lambda step, settings: format_of(step), "steps"),
    "execution": StepFacet(
        lambda step, settings: l0.execution_of(step) if settings.compat == "l0" else execution_of(step), "cells"
    ),
    "length": StepFacet(lambda step, settings: thought_length(step, settings.length_target), "cells"),
}
# What a trajectory earned, each a column; a metric of each round is their mean.
FACETS = ("total", "success", "qa", "em", "f1", "answered", *STEP_FACETS)
SCHEMA = pa.schema(
    [
        ("trajectory", pa.string()),
        ("group", pa.string()),
        ("ability", pa.string()),
        ("environment", pa.string()),
        ("status", pa.string()),
        ("step_rewards", pa.list_(pa.float64())),
        *((name, pa.float64()) for name in FACETS),  # success: 1 if the environment says that the task was done, else 0
        ("own", pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))),  # facets of an environment of one's own
        ("unscored", pa.string()),  # why its scorer failed; empty for most
    ]
)
CHILDREN = pa.field("children", pa.list_(pa.struct([("caller", pa.int32()), ("step_rewards", pa.list_(pa.float64()))])))
"""Column of runs whose agents have children: by which step each was called, and the rewards of its own steps."""


def score(row: Mapping[str, Any], settings: RewardSettings) -> dict[str, Any]:
    """Compute the rewards of one trajectory: a row of SCHEMA from its steps, its answer and its references."""
    return _score(row, judge([row])[0], settings)


def _score(row: Mapping[str, Any], judged: Judged, settings: RewardSettings) -> dict[str, Any]:
    """Return the rewards of one trajectory whose answer was judged.

    A summary runs no cell: it earns nothing for execution and does not reduce what the cells can earn. With `compat` l0 the
    answer and the cells are rewarded by L0's rules; em, f1 and answered do not change. An environment of one's own may pay each
    step itself.
    """
    as_l0 = settings.compat == "l0"
    steps = row["steps"]
    if any(step["kind"] == "reply" for step in steps):  # of a program, which is judged by what it did alone
        settings = settings.model_copy(update={"qa": 1.0, **dict.fromkeys(STEP_FACETS, 0.0)})
    answer = given(row["answer"])
    if as_l0 and row["rule"] == QA:
        qa = l0.qa_reward(row["answer"], row["answers"], settings.qa_weights)
    elif judged.value is not None:
        qa = settings.qa_weights.scaled(judged.value)
    elif answer is None and row["rule"] != FILES:  # by that rule files are right or wrong, whatever is said
        qa = settings.qa_weights.scaled(0.0)
    else:
        qa = settings.qa_weights.reward(judged.exact, judged.partial, answered=answer is not None)
    rewards, means = _of_steps(steps, settings)
    every = range(len(rewards))
    if judged.steps:
        rewards = [reward + settings.qa * paid for reward, paid in zip(rewards, judged.steps, strict=True)]
    else:
        for place in every if as_l0 and row["rule"] == QA and l0.empty_gold(row["answers"]) else every[-1:]:
            rewards[place] += settings.qa * qa
    return {
        "trajectory": row["id"],
        "group": row["group"],
        "ability": row["ability"],
        "environment": row["environment"],
        "status": row["status"],
        "step_rewards": rewards,
        "total": sum(rewards),
        "success": judged.exact,
        "qa": qa,
        "em": judged.exact,
        "f1": judged.partial,
        "answered": float(answer is not None),
        **means,
        "own": [{"name": name, "value": value} for name, value in judged.facets],
        "unscored": judged.fault,
    }


def _of_steps(steps: Sequence[Mapping[str, Any]], settings: RewardSettings) -> tuple[list[float], dict[str, float]]:
    """Return what each step earns beside the answer, and the mean of each facet."""
    divisors = {"steps": max(1, len(steps)), "cells": max(1, sum(step["kind"] == "cell" for step in steps))}
    earned = {name: [facet.earned(step, settings) for step in steps] for name, facet in STEP_FACETS.items()}
    rewards = [
        sum(getattr(settings, name) * earned[name][number] / divisors[facet.divided_by] for name, facet in STEP_FACETS.items())
        for number in range(len(steps))
    ]
    return rewards, {name: sum(earned[name]) / divisors[facet.divided_by] for name, facet in STEP_FACETS.items()}


def _of_children(row: Mapping[str, Any], judged: Judged, settings: RewardSettings, credit: Credit) -> list[dict[str, Any]]:
    """Return the rows of CHILDREN: rewards where children have their own credit, at the end what their environment says that
    they are worth; else zeros.
    """
    scored = list[dict[str, Any]]()
    for number, child in enumerate(row["children"] or ()):
        rewards = [0.0] * len(child["steps"])
        if credit == "own" and rewards and not judged.fault:
            rewards, _ = _of_steps(child["steps"], settings)
            rewards[-1] += settings.qa * settings.qa_weights.scaled(judged.children[number] if judged.children else 0.0)
        scored.append({"caller": child["caller"], "step_rewards": rewards})
    return scored


def score_table(table: pa.Table, settings: RewardSettings, credit: Credit | None = None) -> pa.Table:
    """Return rows of SCHEMA for trajectories with their references and grades, and CHILDREN where these can have some."""
    rows = table.to_pylist()
    for row in rows:
        row["children_scored"] = credit == "own"
    verdicts = judge(rows)
    scored = [_score(row, judged, settings) for row, judged in zip(rows, verdicts, strict=True)]
    rewards = pa.Table.from_pylist(scored, schema=SCHEMA)
    if credit is None:
        return rewards
    children = [_of_children(row, judged, settings, credit) for row, judged in zip(rows, verdicts, strict=True)]
    return rewards.append_column(CHILDREN, pa.array(children, CHILDREN.type))


def referenced(trajectories: pa.Table, references: pa.Table) -> pa.Table:
    """Return trajectories with what their answers are compared with: the columns of `references`, which are found by `group`."""
    places = {group: place for place, group in enumerate(references["group"].to_pylist())}
    asked = references.drop_columns(["group"]).take([places[group] for group in trajectories["group"].to_pylist()])
    table = trajectories.select([name for name in COLUMNS if name in trajectories.column_names])  # of earlier versions too
    for name in asked.column_names:
        table = table.append_column(name, asked[name])
    return table


def to_grade(block: pa.Table, storage: Storage, references: pa.Table) -> pa.Table:
    """Return what a model that judges is asked of rows of a round's index; Ray Data maps this function."""
    return referenced(joined(block, storage.read_table), references).select(NEEDED)


def score_parts(
    block: pa.Table, storage: Storage, references: pa.Table, settings: RewardSettings, credit: Credit | None
) -> pa.Table:
    """Return the rewards of rows of a round's index, with their grades; Ray Data maps this function."""
    rows = referenced(joined(block, storage.read_table), references)
    for name in GRADES:
        rows = rows.append_column(name, block[name])
    return score_table(rows, settings, credit)


def check_unscored(faults: Sequence[str], count: int) -> None:
    """Raises RewardError if scorers failed, so far, on more than MAX_UNSCORED of `count` trajectories; `faults` say why."""
    if len(faults) > MAX_UNSCORED * count:
        raise RewardError(
            f"scorers failed on {len(faults)} of {count} trajectories, of which {MAX_UNSCORED:.0%} are allowed; the first says: "
            f"{faults[0]}; correct what scores them, then continue the run by `nbrl resume` or the evaluation by the same "
            "command, or begin another one if code or a setting that decides results, such as the judge, had to change"
        )
