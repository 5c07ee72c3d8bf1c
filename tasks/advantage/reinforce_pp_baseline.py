"""REINFORCE++-baseline (arXiv 2501.03262, section on the variant with several responses per prompt)."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.advantage.dr_grpo import dr_grpo
from nbrl.tasks.advantage.whiten import whiten


def reinforce_pp_baseline(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """A = whiten(R − mean of the group): the baseline is the group's, the scale that of the whole batch.

    R is the trajectory's total, the same on each of its steps; whitening is over all steps of the batch.
    """
    return whiten(dr_grpo(step_rewards, groups))
