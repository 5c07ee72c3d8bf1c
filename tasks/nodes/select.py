"""select: keeps groups that carry signal (DAPO's dynamic sampling, arXiv 2503.14476, as softened in L0)."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import DROPPED, SCHEMA, TRAJECTORIES, by_group, judge_table, resampled
from nbrl.tasks.selection.settings import SelectSettings
from nbrl.tasks.services.services import Services


def selected(rewards: pa.Table, settings: SelectSettings, seed: int, missing: int) -> pa.Table:
    """Judge every group; of those with signal, the first `missing` fill the batch and the rest are surplus.

    With `resample_to` the column `trajectories` names those of a kept group that are learned from.
    """
    rows = judge_table(by_group(rewards), settings, seed).to_pylist()
    free = missing
    for row in rows:
        if row["kept"] and free == 0:
            row.update(kept=False, reason="surplus")
        free -= row["kept"]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    if settings.resample_to is None:
        return table
    names = [_resampled(rewards, row, settings.resample_to, seed) for row in rows]
    return table.append_column(TRAJECTORIES, pa.array(names, pa.list_(pa.string())))


def _resampled(rewards: pa.Table, judged: dict[str, Any], count: int, seed: int) -> list[str]:
    """The trajectories of a judged group that are learned from; none of one that was dropped."""
    if not judged["kept"]:
        return []
    return resampled(rewards.filter(pc.equal(rewards["group"], judged["group"])).to_pylist(), count, seed)


@durable
def select(services: Services, scope: Scope, rewards: Artifact, missing: int, round_: int) -> Artifact:
    """Judge every group of a round, of which `missing` fill the batch."""
    selection = selected(services.read(rewards), services.config.select, scope.draw("select"), missing)
    path = scope.layout.round(round_).selection
    digest = services.storage.write_table(path, selection)
    rows = selection.to_pylist()
    reasons = Counter(row["reason"] for row in rows if not row["kept"])
    metrics = {f"{DROPPED}{reason}": float(count) for reason, count in sorted(reasons.items())}
    metrics["select/kept"] = float(sum(row["kept"] for row in rows))
    return Artifact(path=path, digest=digest, metrics=of(metrics, "sum"))
