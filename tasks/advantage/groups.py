"""The common part of the group-relative estimators."""

from collections.abc import Callable, Sequence

import numpy as np

from nbrl.tasks.advantage.whiten import equal


def within_groups(
    step_rewards: Sequence[Sequence[float]], groups: Sequence[str], score: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """`score` turns the totals R of one group's trajectories into their advantages, the same on each step of a trajectory.

    A trajectory that ended before its first step has R = 0: without it the others would be compared only with longer ones. Where
    the totals of a group are equal, its advantages are exactly 0.
    """
    totals = np.array([sum(rewards) for rewards in step_rewards], dtype=np.float64)
    largest = np.array([max(map(abs, rewards), default=0.0) for rewards in step_rewards], dtype=np.float64)
    names = np.array(groups)
    advantages = np.zeros_like(totals)
    for name in set(groups):
        mine = names == name
        if not equal(totals[mine], largest[mine].max()):
            advantages[mine] = score(totals[mine])
    return [np.full(len(rewards), advantage) for rewards, advantage in zip(step_rewards, advantages, strict=True)]
