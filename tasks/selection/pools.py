"""Draws questions by how often their last group was right, so that most of the tokens go where something can be learned.

A curriculum of live difficulty: success rates decide how often a question is asked (prioritized sampling of Kimi k1.5, arXiv
2501.12599), for what is always or never right teaches nothing.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Status
from nbrl.tasks.environments.mixture import Taken, turns, visit_order, with_groups
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.selection.judge import UNSCORED, by_group
from nbrl.tasks.selection.settings import POOLS, Pool, PoolSettings

PASS_RATES_SCHEMA = pa.schema([("id", pa.string()), ("success", pa.float64()), ("iteration", pa.int32()), ("asked", pa.int32())])


def pool_of(success: float | None, settings: PoolSettings) -> Pool:
    """Return the pool of a question whose last group was right in this share; None is one without such a group."""
    if success is None:
        return "unseen"
    if success >= settings.easy_from:
        return "easy"
    return "hard" if success <= settings.hard_to else "learnable"


def rated(before: pa.Table, prompts: pa.Table, rewards: pa.Table, iteration: int) -> pa.Table:
    """Return rows of PASS_RATES_SCHEMA: `before`, and the questions of a round with the share of their group that was right.

    A group with a trajectory that failed or could not be scored says nothing of its question, which keeps its last share.
    """
    question = dict(zip(prompts["group"].to_pylist(), prompts["id"].to_pylist(), strict=True))
    rows = {row["id"]: row for row in before.to_pylist()}
    for group in by_group(rewards).to_pylist():
        id_ = question[group["group"]]
        known = rows.get(id_, {"success": None, "asked": 0})
        says = not {Status.FAILED, UNSCORED} & set(group["fates"])
        success = sum(group["success"]) / len(group["success"]) if says else known["success"]
        rows[id_] = {"id": id_, "success": success, "iteration": iteration, "asked": known["asked"] + 1}
    return pa.Table.from_pylist(list(rows.values()), schema=PASS_RATES_SCHEMA)


def drawn_from(
    questions: pa.Table,
    weights: Mapping[str, float],
    seed: int,
    cursor: int,
    count: int,
    rates: pa.Table,
    settings: PoolSettings,
    iteration: int,
) -> Taken:
    """Return the prompts at `cursor`: environments take turns by `weights`, and in each of them its pools by theirs.

    Of a pool the question comes that was asked longest ago, the unseen ones in the run's order. The turn of a pool that is empty
    goes to the next of POOLS that is not, those of weight 0 last. No question comes twice in an `iteration`, whose earlier rounds
    the rates know, unless all are in it.
    """
    names: list[str] = pc.unique(questions["environment"]).to_pylist()
    order = turns([weights[name] for name in names] if len(names) > 1 else [1.0], cursor, count)
    known = {row["id"]: row for row in rates.to_pylist()}
    waiting = {number: _queues(questions, name, len(names) > 1, seed, known, settings) for number, name in enumerate(names)}
    ids = questions["id"].to_pylist()
    now = {row for row, id_ in enumerate(ids) if id_ in known and known[id_]["iteration"] == iteration}
    of_pools = {pool: weight for pool, weight in settings.weights.items() if weight}
    again: dict[int, list[tuple[Pool, int]]] = {}
    for number, queues in waiting.items():
        again[number] = [(pool, row) for pool, queue in queues.items() for row in queue if row in now]
        waiting[number] = {pool: [row for row in queue if row not in now] for pool, queue in queues.items()}
    rows, taken = list[int](), Counter[Pool]()
    for number, turn in order:
        queues = waiting[number]
        if not any(queues.values()):  # the whole environment is in this batch
            for pool, row in again[number]:
                queues[pool].append(row)
            again[number] = []
        whose, _ = turns(list(of_pools.values()), turn, 1)[0]
        first = list(of_pools)[whose]
        pool = next(each for each in (first, *of_pools, *POOLS) if queues[each])
        rows.append(queues[pool].pop(0))
        again[number].append((pool, rows[-1]))
        taken[pool] += 1
    prompts = questions.take(pa.array(rows, pa.int64()))
    asked = Counter({id_: row["asked"] for id_, row in known.items()})
    times = list[int]()
    for id_ in prompts["id"].to_pylist():
        times.append(asked[id_])
        asked[id_] += 1
    return Taken(with_groups(prompts, times), count)


def sizes(rates: pa.Table, settings: PoolSettings) -> dict[Pool, int]:
    """Return how many of the questions that were asked are in each pool."""
    found = Counter(pool_of(success, settings) for success in rates["success"].to_pylist())
    return {pool: found[pool] for pool in POOLS if pool != "unseen"}


def _queues(
    questions: pa.Table, name: str, several: bool, seed: int, known: Mapping[str, Mapping[str, int]], settings: PoolSettings
) -> dict[Pool, list[int]]:
    """Return the rows of an environment's questions by pool, in the order in which they come."""
    mine = np.flatnonzero(pc.equal(questions["environment"], name).to_numpy(zero_copy_only=False))
    own_seed = derive_seed(seed, "environment", name) if several else seed
    ids, queues = questions["id"].to_pylist(), dict[Pool, list[tuple[int, int, int]]]((pool, []) for pool in POOLS)
    for rank, place in enumerate(visit_order(own_seed, len(mine), 0, len(mine))):
        row = int(mine[place])
        seen = known.get(ids[row])
        last = -1 if seen is None else seen["iteration"]
        queues[pool_of(None if seen is None else seen["success"], settings)].append((last, rank, row))
    return {pool: [row for *_, row in sorted(queue)] for pool, queue in queues.items()}
