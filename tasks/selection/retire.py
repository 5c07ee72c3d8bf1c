"""No-positive-resampling (ScaleRL, arXiv 2510.13786): a question that is nearly always answered right is not asked again."""

import pyarrow as pa

from nbrl.agent.trajectory import Status
from nbrl.tasks.selection.groups import by_group
from nbrl.tasks.selection.judge import UNSCORED

SCHEMA = pa.schema([("id", pa.string()), ("success", pa.float64()), ("iteration", pa.int32())])


def retired(before: pa.Table, prompts: pa.Table, rewards: pa.Table, share: float, iteration: int) -> pa.Table:
    """Rows of SCHEMA: `before`, and the questions of a round that at least this share of their group answered right.

    A group with a trajectory that failed or could not be scored says nothing of its question.
    """
    question = dict(zip(prompts["group"].to_pylist(), prompts["id"].to_pylist(), strict=True))
    known = set(before["id"].to_pylist())
    rows = before.to_pylist()
    for group in by_group(rewards).to_pylist():
        success, id_ = sum(group["success"]) / len(group["success"]), question[group["group"]]
        if success >= share and id_ not in known and not {Status.FAILED, UNSCORED} & set(group["fates"]):
            known.add(id_)
            rows.append({"id": id_, "success": success, "iteration": iteration})
    return pa.Table.from_pylist(rows, schema=SCHEMA)
