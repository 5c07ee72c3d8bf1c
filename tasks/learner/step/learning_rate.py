"""Learning rates."""

import math
from typing import Literal


def learning_rate(
    step: int,
    peak: float,
    warmup: int,
    schedule: Literal["constant", "linear", "cosine"] = "constant",
    decay_steps: int | None = None,
    floor: float = 0.0,
) -> float:
    """Rate of optimiser step `step`, from 0: up to `peak` over `warmup` steps, then down to floor * peak at step `decay_steps`.

    With p the fraction of the steps from the end of the warm-up to `decay_steps`: linear 1 - (1 - floor) p, cosine
    floor + (1 - floor) (1 + cos(pi p)) / 2.
    """
    warm = peak * min(1.0, (step + 1) / max(1, warmup))
    if decay_steps is None or step < warmup:
        return warm
    way = min(1.0, (step - warmup) / (decay_steps - warmup))
    if schedule == "linear":
        return peak * (1 - (1 - floor) * way)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * way)) / 2)
