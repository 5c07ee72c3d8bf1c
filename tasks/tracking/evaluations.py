"""Shows evaluations in MLflow: held-out ones of a run in its own run there, others in runs below it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.tasks.environments import stored
from nbrl.tasks.runs.run import Run
from nbrl.tasks.tracking.traces import choose, log_traces, samples

KIND, DIGEST = "nbrl.kind", "nbrl.delivered"
PARENT_NAME, PARENT_ID = "nbrl.run", "nbrl.parent_run_id"
EVALUATION = {KIND: "evaluation"}
TABLE, REPORT = "evaluation", "report.md"
ROWS = 500  # of the table; the storage has all
FOLDER = "evaluations"


def log_answers(
    tracking: Tracking,
    storage: Storage,
    run: Run,
    trajectories: pa.Table,
    rewards: pa.Table,
    traces: int,
    name: str,
    tags: Mapping[str, str],
    tables: Collection[str] = (),
) -> None:
    """Log the answers of an evaluation as the table `name`, unless `tables` has it, and as many of them as traces with `tags`,
    unless they are there.
    """
    questions, scored = stored.read(storage, run.layout.data, "held_out"), rewards.to_pylist()
    answers = dict(zip(questions["id"].to_pylist(), questions["answers"].to_pylist(), strict=True))
    if name not in tables:
        tracking.log_table(name, table(trajectories, scored, answers))
    log_traces(tracking, samples(trajectories, choose(scored, traces), answers), tags)


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
        "f1": [row["f1"] for row in rows],
        "reward": [row["total"] for row in rows],
        "environment": [row["environment"] for row in rows],
        "ability": [row["ability"] for row in rows],
        "status": [row["status"] for row in rows],
        "trajectory": [row["trajectory"] for row in rows],
    }
