"""Chooses the trajectories of an iteration or an evaluation that a person should read: right and wrong ones in turn."""

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Status, Trajectory, from_table


class Sample(NamedTuple):
    """A trajectory with its row of the rewards, and the answers that count as right."""

    trajectory: Trajectory
    rewards: Mapping[str, Any]
    expected: list[str]


def choose(rewards: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """`count` rows of rewards: right and wrong ones in turn, in the order of the table; those that failed come last."""
    right = [row for row in rewards if row["success"] >= 1.0]
    wrong = sorted((row for row in rewards if row["success"] < 1.0), key=lambda row: row["status"] == Status.FAILED)
    return [row for row in chain.from_iterable(zip_longest(right, wrong)) if row is not None][:count]


def samples(trajectories: pa.Table, rewards: Sequence[Mapping[str, Any]], answers: Mapping[str, list[str]]) -> list[Sample]:
    """The trajectories of these rows of rewards, with the `answers` of their groups."""
    wanted = pa.array([row["trajectory"] for row in rewards], pa.string())
    found = {each.id: each for each in from_table(trajectories.filter(pc.is_in(trajectories["id"], value_set=wanted)))}
    return [Sample(found[row["trajectory"]], row, answers.get(row["group"], [])) for row in rewards if row["trajectory"] in found]
