"""Dr. GRPO (arXiv 2503.20783, section 3.2)."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.advantage.groups import within_groups


def dr_grpo(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """A = R − mean of the group: without GRPO's std, which gives more weight to questions that are nearly always right or wrong.

    The paper's other half, a constant in place of each response's length, is update.aggregation fixed_length.
    """
    return within_groups(step_rewards, groups, lambda totals: totals - totals.mean())
