"""select: which groups carry signal (DAPO's dynamic sampling, arXiv 2503.14476, as softened in L0)."""

import asyncio
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from agent.trajectory import Status
from infra.ray_data import map_tables
from tasks.node import node
from tasks.parts import Parts
from tasks.scope import Artifact, Scope, derive_seed

SCHEMA = pa.schema([("group", pa.string()), ("kept", pa.bool_()), ("reason", pa.string())])


class SelectSettings(BaseModel):
    """A group whose trajectories are all right or all wrong is dropped with probability `drop_rate`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop_rate: float = Field(0.5, ge=0, le=1)
    max_rounds: int = Field(3, ge=1, le=20, description="rounds of fresh prompts until the batch is full")


def judge(group: str, em: list[float], statuses: list[str], settings: SelectSettings, seed: int) -> dict[str, Any]:
    """Keep or drop one group, with the reason. A group with a failed trajectory is set aside whole: never a partial group."""
    if Status.FAILED in statuses:
        return {"group": group, "kept": False, "reason": "failed"}
    reason = "all_right" if min(em) == 1 else "all_wrong" if max(em) == 0 else "signal"
    kept = reason == "signal" or np.random.default_rng(derive_seed(seed, group)).random() >= settings.drop_rate
    return {"group": group, "kept": bool(kept), "reason": reason}


def judge_table(groups: pa.Table, settings: SelectSettings, seed: int) -> pa.Table:
    """What Ray Data maps: one row a group in (group, em, statuses), rows of SCHEMA out."""
    rows = [judge(row["group"], row["em"], row["statuses"], settings, seed) for row in groups.to_pylist()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def by_group(rewards: pa.Table) -> pa.Table:
    """One row a group, in order of appearance."""
    em: dict[str, list[float]] = defaultdict(list)
    statuses: dict[str, list[str]] = defaultdict(list)
    for row in rewards.select(["group", "em", "status"]).to_pylist():
        em[row["group"]].append(row["em"])
        statuses[row["group"]].append(row["status"])
    return pa.table({"group": list(em), "em": list(em.values()), "statuses": list(statuses.values())})


@node
async def select(parts: Parts, scope: Scope, rewards: Artifact, wanted: int, round_: int) -> Artifact:
    """Judge every group of a round; of those kept, the first `wanted` fill the batch and the rest are surplus."""
    groups = by_group(parts.storage.read_table(rewards.path))
    settings, seed = parts.config.select, scope.draw("select")
    rows = (await asyncio.to_thread(map_tables, [groups], judge_table, (settings, seed))).to_pylist()
    room = wanted
    for row in rows:
        if row["kept"] and room == 0:
            row.update(kept=False, reason="surplus")
        room -= row["kept"]
    path = f"{scope.folder}/round-{round_}/selection.parquet"
    digest = parts.storage.write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA))
    dropped = Counter(row["reason"] for row in rows if not row["kept"])
    metrics = {f"select/dropped/{reason}": float(count) for reason, count in sorted(dropped.items())}
    metrics["select/kept"] = float(sum(row["kept"] for row in rows))
    return Artifact(path=path, digest=digest, metrics=metrics)
