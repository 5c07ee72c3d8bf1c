"""The order in which a run asks its training questions: several environments by weight, each in epochs of its own."""

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.tasks.seeds import derive_seed

LONGEST_WALK = 65_536  # positions that are looked at together


def turns(weights: Sequence[float], first: int, count: int) -> list[tuple[int, int]]:
    """Return which environment has the turn at positions `first … first + count - 1`: its number, and which of its turns that is.

    Stride scheduling (Waldspurger and Weihl 1995): turn k of an environment of weight w is due at (k + 1/2) / w. Of any number of
    positions each environment has its share, within one turn for each environment. Every weight is above 0.
    """
    exact = [Fraction(weight) for weight in weights]
    # Everything due before this time is among the first positions, since rounding adds at most half a turn for each environment.
    begin = max(Fraction(0), (first - len(exact)) / sum(exact))
    taken = [max(0, math.ceil(begin * weight - Fraction(1, 2))) for weight in exact]
    due = [((2 * turn + 1) / (2 * weight), number) for number, (turn, weight) in enumerate(zip(taken, exact, strict=True))]
    heapq.heapify(due)
    order: list[tuple[int, int]] = []
    for position in range(sum(taken), first + count):
        _, number = due[0]
        if position >= first:
            order.append((number, taken[number]))
        taken[number] += 1
        heapq.heapreplace(due, ((2 * taken[number] + 1) / (2 * exact[number]), number))
    return order


def visit_order(seed: int, size: int, first: int, count: int) -> list[int]:
    """Return the rows at `first … first + count - 1` of an endless order, each epoch a new permutation of all `size` rows."""
    rows: list[int] = []
    for position in range(first, first + count):
        epoch, offset = divmod(position, size)
        if not rows or offset == 0:
            order = np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(size)
        rows.append(int(order[offset]))
    return rows


def with_groups(prompts: pa.Table, epochs: Sequence[int]) -> pa.Table:
    """Return prompts with the column `group`: the id and, after the first epoch, the epoch, so that groups are unique in a run.

    No id is another one with a number behind it: see questions.check.
    """
    names = [f"{name}.{epoch}" if epoch else name for name, epoch in zip(prompts["id"].to_pylist(), epochs, strict=True)]
    return prompts.append_column("group", pa.array(names, pa.string()))


class Taken(NamedTuple):
    """Prompts, and how many positions of the order they were taken from."""

    prompts: pa.Table
    positions: int


def prompts_from(
    questions: pa.Table, weights: Mapping[str, float], seed: int, cursor: int, count: int, retired: Collection[str] = ()
) -> Taken:
    """Return the first `count` prompts from `cursor` on whose questions are not among the `retired` ids.

    Where every question is retired, all are asked again.
    """
    keep = pc.invert(pc.is_in(questions["id"], pa.array(list(retired), pa.string())))
    if not retired or not pc.any(keep).as_py():
        return Taken(prompts_at(questions, weights, seed, cursor, count), count)
    tables, places, walked, step = list[pa.Table](), list[int](), 0, count
    while len(places) < count:
        walk = prompts_at(questions, weights, seed, cursor + walked, step)
        wanted = pc.invert(pc.is_in(walk["id"], pa.array(list(retired), pa.string())))
        places += [walked + place for place, each in enumerate(wanted.to_pylist()) if each]
        tables.append(walk.filter(wanted))
        walked += step
        step = min(2 * step, LONGEST_WALK)
    return Taken(pa.concat_tables(tables).slice(0, count).combine_chunks(), places[count - 1] + 1)


def prompts_at(questions: pa.Table, weights: Mapping[str, float], seed: int, cursor: int, count: int) -> pa.Table:
    """Return the `count` prompts at `cursor` in the order of a run with this seed, whose environments have these weights.

    `questions` are the training questions of all environments, those of each together.
    """
    names: list[str] = pc.unique(questions["environment"]).to_pylist()
    starts = [pc.index(questions["environment"], name).as_py() for name in names]
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(questions)], strict=True)]
    order = turns([weights[name] for name in names] if len(names) > 1 else [1.0], cursor, count)
    rows, epochs = [0] * count, [0] * count
    for number, (name, start, size) in enumerate(zip(names, starts, sizes, strict=True)):
        places = [place for place, (whose, _) in enumerate(order) if whose == number]
        if not places:
            continue
        mine = derive_seed(seed, "environment", name) if len(names) > 1 else seed
        visited = visit_order(mine, size, order[places[0]][1], len(places))
        for place, row in zip(places, visited, strict=True):
            rows[place], epochs[place] = start + row, order[place][1] // size
    return with_groups(questions.take(pa.array(rows)), epochs)
