"""Computes step advantages from step rewards with the estimator that the settings name."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.advantage.dr_grpo import dr_grpo
from nbrl.tasks.advantage.grpo import grpo
from nbrl.tasks.advantage.max_rl import max_rl
from nbrl.tasks.advantage.reinforce_pp import reinforce_pp
from nbrl.tasks.advantage.reinforce_pp_baseline import reinforce_pp_baseline
from nbrl.tasks.advantage.rloo import rloo
from nbrl.tasks.advantage.settings import AdvantageSettings

GROUPED = {
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "max_rl": max_rl,
}


def estimate(step_rewards: Sequence[Sequence[float]], groups: Sequence[str], settings: AdvantageSettings) -> list[np.ndarray]:
    """One array of [steps] per trajectory, at least one of which has a step. For the estimators without a critic."""
    if settings.estimator == "reinforce_pp":
        return reinforce_pp(step_rewards, settings.gamma)
    return GROUPED[settings.estimator](step_rewards, groups)
