"""Draws questions by how often their last group was right, so that most of the tokens go where something can be learned.

A curriculum of live difficulty: success rates decide how often a question is asked (prioritized sampling of Kimi k1.5, arXiv
2501.12599), for what is always or never right teaches nothing.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Status
from nbrl.infra.errors import DamagedError
from nbrl.tasks.environments.mixture import Taken, turns, visit_order, with_groups
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.selection.judge import UNSCORED, by_group
from nbrl.tasks.selection.settings import POOLS, Pool, PoolSettings

PASS_RATES_SCHEMA = pa.schema([("id", pa.string()), ("success", pa.float64()), ("iteration", pa.int32()), ("asked", pa.int32())])
UNSEEN: Mapping[str, Any] = {"success": None, "iteration": -1}


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
    the rates know, unless all are in it. Raises DamagedError if the rates are none.
    """
    if not rates.schema.equals(PASS_RATES_SCHEMA) or any(rates[name].null_count for name in ("id", "iteration", "asked")):
        raise DamagedError("the table of pass rates is not one")
    names: list[str] = pc.unique(questions["environment"]).to_pylist()
    order = turns([weights[name] for name in names] if len(names) > 1 else [1.0], cursor, count)
    known = {row["id"]: row for row in rates.to_pylist()}
    seeds = [derive_seed(seed, "environment", name) for name in names] if len(names) > 1 else [seed]
    drawing = [_Drawing(questions, name, own, known, settings, iteration) for name, own in zip(names, seeds, strict=True)]
    prompts = questions.take(pa.array([drawing[number].next(turn) for number, turn in order], pa.int64()))
    asked, times = Counter({id_: row["asked"] for id_, row in known.items()}), list[int]()
    for id_ in prompts["id"].to_pylist():
        times.append(asked[id_])
        asked[id_] += 1
    return Taken(with_groups(prompts, times), count)


class _Drawing:
    """Draws the questions of an environment by pool, in their order; those that the iteration asked come last."""

    def __init__(
        self,
        questions: pa.Table,
        name: str,
        seed: int,
        known: Mapping[str, Mapping[str, Any]],
        settings: PoolSettings,
        iteration: int,
    ) -> None:
        self._weights = {pool: weight for pool, weight in settings.weights.items() if weight}
        self._queues: dict[Pool, list[int]] = {pool: [] for pool in POOLS}
        self._asked: list[tuple[Pool, int]] = []
        mine = np.flatnonzero(pc.equal(questions["environment"], name).to_numpy(zero_copy_only=False))
        ordered = mine[visit_order(seed, len(mine), 0, len(mine))].tolist()
        seen = [known.get(id_, UNSEEN) for id_ in questions["id"].take(pa.array(ordered)).to_pylist()]
        for rank in sorted(range(len(ordered)), key=lambda rank: (seen[rank]["iteration"], rank)):
            pool = pool_of(seen[rank]["success"], settings)
            if seen[rank]["iteration"] == iteration:
                self._asked.append((pool, ordered[rank]))
            else:
                self._queues[pool].append(ordered[rank])

    def next(self, turn: int) -> int:
        """Return the row that comes at a turn of the environment."""
        if not any(self._queues.values()):  # all of it is in this iteration
            for pool, row in self._asked:
                self._queues[pool].append(row)
            self._asked = []
        whose, _ = turns(list(self._weights.values()), turn, 1)[0]
        first = list(self._weights)[whose]
        pool = next(each for each in (first, *self._weights, *POOLS) if self._queues[each])
        row = self._queues[pool].pop(0)
        self._asked.append((pool, row))
        return row


def sizes(rates: pa.Table, settings: PoolSettings) -> dict[Pool, int]:
    """Return how many of the questions that were asked are in each pool."""
    found = Counter(pool_of(success, settings) for success in rates["success"].to_pylist())
    return {pool: found[pool] for pool in POOLS if pool != "unseen"}
