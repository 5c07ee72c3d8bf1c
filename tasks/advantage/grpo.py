"""GRPO (arXiv 2402.03300, section 4.1.2, outcome supervision)."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.advantage.groups import within_groups


def grpo(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """A = (R − mean of the group) / (std of the group + 1e-8), std unbiased and 0 for a group of one."""

    def score(totals: np.ndarray) -> np.ndarray:
        spread = totals.std(ddof=1) if len(totals) > 1 else 0.0
        return (totals - totals.mean()) / (spread + 1e-8)

    return within_groups(step_rewards, groups, score)
