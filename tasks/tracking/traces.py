"""Logs trajectories as MLflow traces: per step one span for the policy and one for the cell, and how they were scored."""

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Status, Step, Trajectory, from_table
from nbrl.infra.tracking import Tracking
from nbrl.infra.tracking_traces import Assessments, Span, Traced


class Sample(NamedTuple):
    """A trajectory with its row of the rewards, and the answers that count as right."""

    trajectory: Trajectory
    rewards: Mapping[str, Any]
    expected: list[str]


def choose(rewards: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return `count` rows of rewards: right and wrong ones in turn, in the order of the table; those that failed come last."""
    right = [row for row in rewards if row["success"] >= 1.0]
    wrong = sorted((row for row in rewards if row["success"] < 1.0), key=lambda row: row["status"] == Status.FAILED)
    return [row for row in chain.from_iterable(zip_longest(right, wrong)) if row is not None][:count]


def samples(trajectories: pa.Table, rewards: Sequence[Mapping[str, Any]], answers: Mapping[str, list[str]]) -> list[Sample]:
    """Return the trajectories of these rows of rewards, with the `answers` of their groups."""
    wanted = pa.array([row["trajectory"] for row in rewards], pa.string())
    by_id = {each.id: each for each in from_table(trajectories.filter(pc.is_in(trajectories["id"], value_set=wanted)))}
    return [Sample(by_id[row["trajectory"]], row, answers.get(row["group"], [])) for row in rewards if row["trajectory"] in by_id]


def log_traces(tracking: Tracking, samples: Sequence[Sample], tags: Mapping[str, str], check_existing: bool = True) -> None:
    """Log those of the samples that the run does not have with these tags, and the assessments that they lack.

    Without `check_existing`, MLflow is not queried for existing traces.
    """
    logged = tracking.traces.there(tags) if samples and check_existing else {}
    for sample in samples:
        trace = logged.get(sample.trajectory.id) or _log(tracking, sample.trajectory, tags)
        tracking.traces.assess(trace, assessments(sample))


def _log(tracking: Tracking, trajectory: Trajectory, tags: Mapping[str, str]) -> Traced:
    return tracking.traces.log(
        name=trajectory.id,
        inputs={"question": trajectory.question},
        outputs={"answer": trajectory.answer, "status": trajectory.status.value},
        spans=spans(trajectory),
        tags={**tags, "environment": trajectory.environment, "ability": trajectory.ability},
    )


def assessments(sample: Sample) -> Assessments:
    """Return the expected answer, or all of several, where there is one; reward, success and exact match."""
    expected = sample.expected
    rewards = sample.rewards
    return Assessments(
        expected={"expected_answer": expected[0] if len(expected) == 1 else expected} if expected else {},
        feedback={
            "reward": float(rewards["total"]),
            "success": rewards["success"] >= 1.0,
            "exact_match": rewards["em"] >= 1.0,
        },
    )


def spans(trajectory: Trajectory) -> list[Span]:
    """Return spans in chronological order; a step's policy call comes first, its cell right after."""
    clock = int(trajectory.started_at * 1e9)
    tokens = _tokens(trajectory)
    result: list[Span] = []
    for number, step in enumerate(trajectory.steps):
        thought, ran = clock + int(step.policy_seconds * 1e9), clock + int((step.policy_seconds + step.kernel_seconds) * 1e9)
        result.append(
            Span(
                name=f"step {number}: {'think' if step.kind == 'cell' else 'summarise'}",
                kind="LLM",
                start_ns=clock,
                end_ns=thought,
                inputs={"notepad": step.notepad},
                outputs=_outputs(step),
                tokens=tokens.get(number),
            )
        )
        if step.code and step.kind == "cell":
            result.append(
                Span(
                    name=f"step {number}: cell",
                    kind="TOOL",
                    start_ns=thought,
                    end_ns=ran,
                    inputs={"code": step.code},
                    outputs={"status": step.cell_status, "output": step.observation},
                )
            )
        clock = ran
    return result


def _tokens(trajectory: Trajectory) -> dict[int, tuple[int, int]]:
    """Return the numbers of tokens that the policy read and wrote at each step whose ids are known."""
    return {
        node.step: (len(trajectory.path(node.parent)), len(node.token_ids)) for node in trajectory.sampled() if node.token_ids
    }


def _outputs(step: Step) -> dict[str, str]:
    if step.kind == "summary":
        return {"think": step.think, "summary": step.observation, "malformed": step.malformed}
    if step.kind == "reply":
        return {"think": step.think, "reply": step.code}
    return {"think": step.think, "code": step.code, "malformed": step.malformed}
