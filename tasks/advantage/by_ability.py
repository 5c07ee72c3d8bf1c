"""Advantages of each ability on one scale (task advantage normalisation: AgentRL, arXiv 2510.04206)."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.advantage.whiten import ROUNDING, whiten


def by_ability(advantages: np.ndarray, abilities: Sequence[str]) -> np.ndarray:
    """The advantages [N] of all sampled tokens, those of each ability whitened: mean 0 and deviation 1 over its tokens.

    Where those of an ability differ by rounding errors alone, they are 0.
    """
    names, numbers = np.unique(np.asarray(abilities), return_inverse=True)
    made = np.zeros(len(advantages))
    for number in range(len(names)):
        mine = advantages[numbers == number]
        if np.ptp(mine) >= ROUNDING:
            (made[numbers == number],) = whiten([mine])
    return made
