"""All answers of an evaluation as one table: question × answer × reference × score × trajectory."""

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.infra.parts import joined
from nbrl.infra.storage import Storage

SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),  # with the environment's name, in an evaluation of several or of one
        ("environment", pa.string()),
        ("ability", pa.string()),
        ("question", pa.string()),
        ("references", pa.list_(pa.string())),
        ("sample", pa.int32()),
        ("answer", pa.string()),
        ("status", pa.string()),
        ("success", pa.float64()),
        ("em", pa.float64()),
        ("f1", pa.float64()),
        ("reward", pa.float64()),
        ("steps", pa.int32()),
        ("sampled_tokens", pa.int64()),
        ("trajectory", pa.string()),
        ("unscored", pa.string()),
        ("failure", pa.string()),
    ]
)


def answers_of(trajectories: pa.Table, rewards: pa.Table, questions: pa.Table) -> pa.Table:
    """One row of SCHEMA for each trajectory, in the order of `trajectories`. A failed or unscored one has success 0."""
    asked = {row["id"]: row for row in questions.select(["id", "answers"]).to_pylist()}
    scored = {row["trajectory"]: row for row in rewards.to_pylist()}
    rows = []
    columns = ["id", "group", "sample", "question", "ability", "environment", "status", "answer", "failure", "nodes", "steps"]
    for row in trajectories.select(columns).to_pylist():
        reward = scored[row["id"]]
        rows.append(
            {
                "question_id": question_id(row["environment"], row["group"]),
                "environment": row["environment"],
                "ability": row["ability"],
                "question": row["question"],
                "references": asked[row["group"]]["answers"],
                "sample": row["sample"],
                "answer": row["answer"],
                "status": row["status"],
                "success": reward["success"],
                "em": reward["em"],
                "f1": reward["f1"],
                "reward": reward["total"],
                "steps": len(row["steps"]),
                "sampled_tokens": sum(len(node["token_ids"]) for node in row["nodes"] if node["kind"] == "sampled"),
                "trajectory": row["id"],
                "unscored": reward["unscored"],
                "failure": row["failure"],
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def answers_in(block: pa.Table, storage: Storage, rewards: pa.Table, questions: pa.Table) -> pa.Table:
    """Those of rows of a round's index; a function that Ray Data maps."""
    trajectories = joined(block, storage.read_table)
    rewards = rewards.filter(pc.is_in(rewards["trajectory"], value_set=trajectories["id"].combine_chunks()))
    questions = questions.filter(pc.is_in(questions["id"], value_set=trajectories["group"].combine_chunks()))
    return answers_of(trajectories, rewards, questions)


def question_id(environment: str, group: str) -> str:
    """A question's id by which evaluations of different environments are joined: only with several are ids prefixed there."""
    prefix = f"{environment}:"
    return group if group.startswith(prefix) else prefix + group
