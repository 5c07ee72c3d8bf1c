"""Resampling on correct (GRPO-RoC of rStar2-Agent, arXiv 2508.20722): many are sampled, and the cleanest successes stay.

Among successes the paper draws by their flaws; its authors' code, as here, takes those with the fewest.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbrl.tasks.seeds import derive_seed


def resampled(rewards: Sequence[Mapping[str, Any]], count: int, seed: int) -> list[str]:
    """Ids of the `count` trajectories of a group that are learned from, in the order of `rewards`, its rows.

    Right and wrong ones keep their shares, with at least one of each kind that there is. Of the right ones those stay that
    had the fewest cells with errors and the fewest malformed steps; of the wrong ones any, at random by the seed, so that all
    kinds of failure are kept. Of equal ones chance decides, too.
    """
    chance = {row["trajectory"]: np.random.default_rng(derive_seed(seed, row["trajectory"])).random() for row in rewards}
    right = sorted((row for row in rewards if row["success"] > 0), key=lambda row: (flaws(row), chance[row["trajectory"]]))
    wrong = sorted((row for row in rewards if row["success"] <= 0), key=lambda row: chance[row["trajectory"]])
    of_right = round(count * len(right) / len(rewards))
    of_right = min(max(of_right, bool(right)), count - bool(wrong))
    chosen = {row["trajectory"] for row in [*right[:of_right], *wrong[: count - of_right]]}
    return [row["trajectory"] for row in rewards if row["trajectory"] in chosen]


def flaws(rewards: Mapping[str, Any]) -> float:
    """Share of the cells of a trajectory that failed, and of its steps that were malformed, together."""
    return (1 - float(rewards["execution"])) + (1 - float(rewards["format"]))
