"""Advantages of the steps of children: models and agents that cells called."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbrl.agent.settings import Credit
from nbrl.tasks.advantage.estimate import estimate
from nbrl.tasks.advantage.settings import AdvantageSettings


def of_children(
    rewards: Sequence[Mapping[str, Any]], own: Sequence[np.ndarray], settings: AdvantageSettings, credit: Credit
) -> list[np.ndarray]:
    """Return one array of [steps of all children] per row of rewards, in the order of their numbers; `own` are the advantages of
    the trajectories' own steps.

    `parent`: the advantage of the step that called a child, for the return is the parent's. `own`: the estimator over the
    children's own rewards, where the children of a group's trajectories are the group. `none`: empty.
    """
    if credit == "none":
        return [np.zeros(0) for _ in rewards]
    if credit == "parent":
        return [_of_callers(row["children"], array) for row, array in zip(rewards, own, strict=True)]
    every = [(number, child["step_rewards"]) for number, row in enumerate(rewards) for child in row["children"]]
    made: list[list[np.ndarray]] = [[] for _ in rewards]
    if any(steps for _, steps in every):
        groups = [rewards[number]["group"] for number, _ in every]
        for (number, _), array in zip(every, estimate([steps for _, steps in every], groups, settings), strict=True):
            made[number].append(array)
    return [np.concatenate([np.zeros(0), *arrays]) for arrays in made]


def _of_callers(children: Sequence[Mapping[str, Any]], own: np.ndarray) -> np.ndarray:
    values = own.tolist()
    for child in children:
        values += [values[child["caller"]]] * len(child["step_rewards"])
    return np.array(values[len(own) :])
