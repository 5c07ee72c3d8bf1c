"""The groups of a table of rewards."""

from collections import defaultdict

import pyarrow as pa

from nbrl.tasks.selection.judge import UNSCORED


def by_group(rewards: pa.Table) -> pa.Table:
    """One row per group, in order of appearance."""
    success: dict[str, list[float]] = defaultdict(list)
    fate: dict[str, list[str]] = defaultdict(list)
    for row in rewards.select(["group", "success", "status", "unscored"]).to_pylist():
        success[row["group"]].append(row["success"])
        fate[row["group"]].append(UNSCORED if row["unscored"] else row["status"])
    return pa.table({"group": list(success), "success": list(success.values()), "fates": list(fate.values())})
