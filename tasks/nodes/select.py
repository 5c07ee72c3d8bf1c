"""select: which groups carry signal (DAPO's dynamic sampling, arXiv 2503.14476, as softened in L0)."""

import asyncio
from collections import Counter, defaultdict

import pyarrow as pa

from nbrl.infra.ray_data import map_tables
from nbrl.tasks.nodes.durable import node
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import DROPPED, SCHEMA, judge_table
from nbrl.tasks.services.services import Services


def by_group(rewards: pa.Table) -> pa.Table:
    """One row a group, in order of appearance."""
    em: dict[str, list[float]] = defaultdict(list)
    statuses: dict[str, list[str]] = defaultdict(list)
    for row in rewards.select(["group", "em", "status"]).to_pylist():
        em[row["group"]].append(row["em"])
        statuses[row["group"]].append(row["status"])
    return pa.table({"group": list(em), "em": list(em.values()), "statuses": list(statuses.values())})


@node
async def select(services: Services, scope: Scope, rewards: Artifact, wanted: int, round_: int) -> Artifact:
    """Judge every group of a round; of those kept, the first `wanted` fill the batch and the rest are surplus."""
    groups = by_group(services.storage.read_table(rewards.path))
    settings, seed = services.config.select, scope.draw("select")
    rows = (await asyncio.to_thread(map_tables, [groups], judge_table, (settings, seed))).to_pylist()
    room = wanted
    for row in rows:
        if row["kept"] and room == 0:
            row.update(kept=False, reason="surplus")
        room -= row["kept"]
    path = f"{scope.folder}/round-{round_}/selection.parquet"
    digest = services.storage.write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA))
    reasons = Counter(row["reason"] for row in rows if not row["kept"])
    metrics = {f"{DROPPED}{reason}": float(count) for reason, count in sorted(reasons.items())}
    metrics["select/kept"] = float(sum(row["kept"] for row in rows))
    return Artifact(path=path, digest=digest, metrics=metrics)
