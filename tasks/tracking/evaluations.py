"""Delivers an evaluation that was made outside training to MLflow: a run of its own, below the training run that it evaluates."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from nbrl.infra.storage import Storage
from nbrl.infra.tracking import PARENT, Tracking
from nbrl.tasks.environments import stored
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.tracking.parameters import RUN_ID
from nbrl.tasks.tracking.traces import Sample, choose, log_traces, samples

KIND, DIGEST = "nbrl.kind", "nbrl.delivered"
PARENT_NAME, PARENT_ID = "nbrl.run", "nbrl.parent_run_id"
EVALUATION = {KIND: "evaluation"}
TABLE, REPORT = "evaluation", "report.md"
ROWS = 500  # of the table; the storage has all
FOLDER = "evaluations"


class Parent(NamedTuple):
    """The training run whose policy was evaluated."""

    name: str
    run_id: str


def deliver_evaluation(
    tracking: Tracking,
    name: str,
    run_id: str,
    parent: Parent | None,
    scores: Mapping[str, float],
    rows: pa.Table,
    report: str,
    tags: Mapping[str, str],
    params: Mapping[str, object] | None = None,
    started: float | None = None,
    finished: float | None = None,
    samples: Sequence[Sample] = (),
) -> str:
    """Deliver the evaluation `name` once, and return the id of its run in MLflow; `run_id` is its own, on the storage.

    `scores` become metrics, the first ROWS `rows` (columns question, answer, reference, score and others) a table, and `report`,
    which is Markdown, a file and the run's description; the `samples` become traces. `started` and `finished` are in
    seconds since 1970, by default now. The same evaluation delivered again changes nothing; another one of that name, or one that
    was cut off, is replaced. Where MLflow does not have the parent, tags name it, by which its delivery finds the evaluation.
    Raises what MLflow raises.
    """
    digest = _digest(parent, scores, rows, report, tags, params or {})
    identity = {**EVALUATION, RUN_ID: run_id}
    if tracking.find_run(name, identity):
        if tracking.tag(DIGEST) == digest:
            return tracking.run_id
        tracking.start_over()
    found = tracking.id_of(parent.name, {RUN_ID: parent.run_id}) if parent else ""
    facts = {"mlflow.source.type": "LOCAL", "mlflow.source.name": "nbrl", **tags, "mlflow.note.content": report}
    facts |= {PARENT_NAME: parent.name, PARENT_ID: parent.run_id} if parent else {}
    facts |= {PARENT: found} if found else {}
    run = tracking.start_run(name, params or {}, identity, facts, started=started)
    tracking.log_metrics(scores, 0, finished)
    if len(rows):
        tracking.log_table(TABLE, rows.slice(0, ROWS).to_pydict())
    tracking.log_text(report, REPORT)
    log_traces(tracking, samples, {"run": name})
    tracking.set_tag(DIGEST, digest)
    tracking.end("FINISHED", ended=finished)
    return run


def _digest(
    parent: Parent | None,
    scores: Mapping[str, float],
    rows: pa.Table,
    report: str,
    tags: Mapping[str, str],
    params: Mapping[str, object],
) -> str:
    """Return the SHA-256 of all that is delivered."""
    given = [parent, dict(scores), rows.slice(0, ROWS).to_pydict(), report, dict(tags), {key: str(params[key]) for key in params}]
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()


def log_held_out(
    storage: Storage, run: Run, weights: Weights, result: NodeResult, tracking: Tracking, traces: int, tables: set[str]
) -> None:
    """Log the table and the sample traces of an evaluation, unless they are there; `tables` are the run's tables of them."""
    name, artifact = f"{FOLDER}/{weights.updates:06d}", result.artifact
    tags = {"run": run.name, "evaluation": str(weights.updates)}
    trajectories = _trajectories(storage, artifact.parts)
    rewards = storage.read_table(artifact.path, artifact.digest).to_pylist()
    questions = stored.read(storage, run.layout.data, "held_out")
    answers = dict(zip(questions["id"].to_pylist(), questions["answers"].to_pylist(), strict=True))
    if name not in tables:
        tracking.log_table(name, table(trajectories, rewards, answers))
    log_traces(tracking, samples(trajectories, choose(rewards, traces), answers), tags)


def table(
    trajectories: pa.Table, rewards: Sequence[Mapping[str, Any]], answers: Mapping[str, list[str]]
) -> dict[str, list[object]]:
    """Return the first ROWS trajectories by column: question, answer, reference, score, and what helps to find them again."""
    said = {
        row["id"]: row
        for row in trajectories.select(["id", "question", "answer"]).to_pylist()  # without steps and tokens
    }
    rows = [row for row in rewards if row["trajectory"] in said][:ROWS]
    return {
        "question": [said[row["trajectory"]]["question"] for row in rows],
        "answer": [said[row["trajectory"]]["answer"] for row in rows],
        "reference": [" | ".join(answers.get(row["group"], [])) for row in rows],
        "score": [row["success"] for row in rows],
        "reward": [row["total"] for row in rows],
        "environment": [row["environment"] for row in rows],
        "ability": [row["ability"] for row in rows],
        "status": [row["status"] for row in rows],
        "trajectory": [row["trajectory"] for row in rows],
    }


def _trajectories(storage: Storage, parts: Mapping[str, str]) -> pa.Table:
    key = next(key for key in parts if is_trajectories(key))
    return storage.read_table(key, parts[key])
