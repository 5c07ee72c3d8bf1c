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
DROPPED = "select/dropped/"  # metrics: how many groups, by reason


def judge(group: str, em: list[float], statuses: list[str], settings: SelectSettings, seed: int) -> dict[str, Any]:
    """Keep or drop one group, with the reason. A group with a failed trajectory is dropped as a whole, never used in part."""
    if Status.FAILED in statuses:
        return {"group": group, "kept": False, "reason": "failed"}
    reason = "all_right" if min(em) == 1 else "all_wrong" if max(em) == 0 else "signal"
    kept = reason == "signal" or np.random.default_rng(derive_seed(seed, group)).random() >= settings.drop_rate
    return {"group": group, "kept": bool(kept), "reason": reason}


def judge_table(groups: pa.Table, settings: SelectSettings, seed: int) -> pa.Table:
    """Judge a table with one row per group (group, em, statuses); returns rows of SCHEMA."""
    rows = [judge(row["group"], row["em"], row["statuses"], settings, seed) for row in groups.to_pylist()]
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
    return (
        f"of {counts.total()} groups {counts['all_wrong']} are all wrong, {counts['all_right']} all right, "
        f"{counts['failed']} failed"
    )
