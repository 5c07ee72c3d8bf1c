"""MaxRL (arXiv 2602.02710): with rewards of 0 and 1, an unbiased gradient of a truncated log-likelihood of being right."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.advantage.groups import within_groups


def max_rl(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """A = (R − mean of the group) / mean of the group, 0 where that mean is not above 0: nobody in the group was right."""

    def score(totals: np.ndarray) -> np.ndarray:
        mean = totals.mean()
        return (totals - mean) / mean if mean > 0 else np.zeros_like(totals)

    return within_groups(step_rewards, groups, score)
