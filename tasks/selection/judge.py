"""Pure functions that judge groups."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.agent.trajectory import Status
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.selection.settings import SelectSettings

SCHEMA = pa.schema([("group", pa.string()), ("kept", pa.bool_()), ("reason", pa.string())])
TRAJECTORIES = "trajectories"  # column of those of a kept group that are learned from, where not all of them are
UNSCORED = "unscored"
DROPPED = "select/dropped/"  # metrics: how many groups, by reason


def judge(group: str, success: list[float], fates: list[str], settings: SelectSettings, seed: int) -> dict[str, Any]:
    """Keep or drop one group, with the reason, by its trajectories' successes and fates: statuses, or `unscored`.

    A group with a trajectory that failed or could not be scored is dropped as a whole, never used in part.
    """
    for fate in (Status.FAILED, UNSCORED):
        if fate in fates:
            return {"group": group, "kept": False, "reason": str(fate)}
    reason = "all_right" if min(success) == 1 else "all_wrong" if max(success) == 0 else "signal"
    kept = reason == "signal" or np.random.default_rng(derive_seed(seed, group)).random() >= settings.drop_rate
    return {"group": group, "kept": bool(kept), "reason": reason}


def judge_table(groups: pa.Table, settings: SelectSettings, seed: int) -> pa.Table:
    """Judge a table with one row per group (group, success, fates); returns rows of SCHEMA."""
    rows = [judge(row["group"], row["success"], row["fates"], settings, seed) for row in groups.to_pylist()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def dropped(rounds: Sequence[Mapping[str, float]]) -> Counter[str]:
    """Number of dropped groups by reason, from the metrics of several selections."""
    counts: Counter[str] = Counter()
    for metrics in rounds:
        for key, value in metrics.items():
            if key.startswith(DROPPED):
                counts[key.removeprefix(DROPPED)] += int(value)
    return counts


def no_signal(rounds: Sequence[Mapping[str, float]]) -> str:
    """Why nothing was kept, in words, from the metrics of an iteration's selections."""
    counts = dropped(rounds)
    unscored = f", {counts[UNSCORED]} could not be scored" if counts[UNSCORED] else ""
    return (
        f"of {counts.total()} groups {counts['all_wrong']} are all wrong, {counts['all_right']} all right, "
        f"{counts['failed']} failed{unscored}"
    )
