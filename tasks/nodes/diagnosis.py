"""Diagnoses why a run learned nothing: figures of its last iterations, the likely cause, and what to try."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Status
from nbrl.infra.storage import Storage
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.reward.score import FACETS
from nbrl.tasks.runs.history import Record, Round
from nbrl.tasks.selection.judge import dropped, no_signal

EXAMPLES = 2
SHOWN_CHARS = 120  # of an answer and of a reference
FEW = 0.5  # a facet with a smaller share is the likely cause
OVERLAP = 0.25  # F1 from which answers are near their references


def diagnose(storage: Storage, records: Sequence[Record], remedy: str) -> str:
    """Return lines about these iterations, none of which had an update; the last line is `remedy`."""
    rounds = [round_ for record in records for round_ in record.rounds]
    rewards = pa.concat_tables([storage.read_table(each.rewards.path, each.rewards.digest) for each in rounds])
    trajectories = pa.concat_tables([_with_references(storage, round_) for round_ in rounds], promote_options="default")
    groups = dropped([record.metrics for record in records])
    scored = rewards.filter(pc.not_equal(rewards["status"], Status.FAILED))
    means = {name: sum(scored[name].to_pylist()) / max(1, len(scored)) for name in FACETS}
    statuses = Counter(rewards["status"].to_pylist())
    failed = statuses[Status.FAILED] / len(rewards)
    ends = ", ".join(f"{status} {count}" for status, count in statuses.most_common())
    why = "; ".join(dict.fromkeys(record.skipped for record in records))
    counted = f"{len(records)} iterations in a row" if len(records) > 1 else "the last iteration"
    lines = [
        f"{counted} taught nothing: {no_signal([record.metrics for record in records]) if groups else why}; a group teaches only "
        "where its trajectories earned different rewards",
        f"of {len(rewards)} trajectories: format {means['format']:.0%}, cells without error {means['execution']:.0%}, answered "
        f"{means['answered']:.0%}, success {means['success']:.3f}, F1 {means['f1']:.3f}; they ended as {ends}",
        *_examples(trajectories.to_pylist()),
        f"most likely: {_cause(means, failed, groups, trajectories)}",
        remedy,
    ]
    return "\n".join(lines)


def _cause(means: dict[str, float], failed: float, groups: Counter[str], trajectories: pa.Table) -> str:
    """Return the first cause that applies, and its remedy."""
    if failed >= FEW:
        return f"the infrastructure, not the policy: the first failure says {_failure(trajectories)!r}"
    if not sum(trajectories["taken"].to_pylist()):
        return (
            "no trajectory had space for a single step; shorten the questions, or raise agent.context_tokens as far as the "
            "policy can read"
        )
    if groups["all_right"] > groups["all_wrong"]:
        return "the policy knows these questions already; give it harder ones"
    if means["format"] < FEW:
        return (
            "the policy does not keep to the format of actions; warm it up on demonstrations, take a model that follows "
            "instructions, or say the format more plainly in agent.system_prompt"
        )
    if means["answered"] < FEW:
        return (
            "trajectories end before an answer; raise agent.max_steps, agent.action_tokens, agent.context_tokens or "
            "agent.deadline_s, as the ends above suggest, and ask for submit_final_answer in the prompt"
        )
    if means["f1"] >= OVERLAP:
        return (
            "answers come near their references and never equal them; compare the examples: a reference should be the bare "
            "answer, without solution, unit or sentence around it"
        )
    return (
        "the questions are too hard for this policy as it is; begin with easier ones, raise rollout.group_size, or set "
        "select.drop_rate=0, which learns from what F1, format and execution pay as well"
    )


def _with_references(storage: Storage, round_: Round) -> pa.Table:
    """Return trajectories with their references, questions and failures."""
    table, prompts = [storage.read_table(artifact.path, artifact.digest) for artifact in (round_.trajectories, round_.prompts)]
    joined = with_references(table, prompts)
    taken = pc.list_value_length(joined["steps"])
    joined = joined.drop_columns(["steps"]).append_column("taken", taken)
    return joined.append_column("failure", table["failure"])


def _examples(rows: list[dict[str, Any]]) -> list[str]:
    """Return answers to different questions with their references; trajectories that answered come first."""
    lines: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row["answer"] is None):
        outcome = "was not answered" if row["answer"] is None else f"was answered {row['answer'][:SHOWN_CHARS]!r}"
        references = " or ".join(repr(answer[:SHOWN_CHARS]) for answer in row["answers"][:3])
        lines.setdefault(row["group"], f"example: {row['question'][:SHOWN_CHARS]!r} {outcome}; right is {references}")
        if len(lines) == EXAMPLES:
            break
    return list(lines.values())


def _failure(trajectories: pa.Table) -> str:
    return next((text[:300] for text in trajectories["failure"].to_pylist() if text), "")
