"""Figures gathered over micro-batches, ranks and optimiser steps."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

MAX = "max/"
MISMATCH_MAX = "mismatch/logprob_max_abs"


class Tally:
    """Sums, and maxima of the names that begin with `max/`. Every rank must add the same names."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, Tensor] = {}

    def add(self, figures: Mapping[str, Tensor]) -> None:
        for name, value in figures.items():
            value = value.detach().double()
            held = self._held.get(name)
            if held is not None:
                value = torch.maximum(held, value) if name.startswith(MAX) else held + value
            self._held[name] = value

    def gather(self) -> dict[str, float]:
        """Collective. The figures of all ranks together, maxima without their prefix."""
        gathered: dict[str, float] = {}
        for most in (False, True):
            names = sorted(name for name in self._held if name.startswith(MAX) == most)
            if names:
                values = torch.stack([self._held[name] for name in names]).to(self._device)
                dist.all_reduce(values, op=dist.ReduceOp.MAX if most else dist.ReduceOp.SUM)
                gathered |= zip((name.removeprefix(MAX) for name in names), values.tolist(), strict=True)
        return gathered


def over_steps(steps: Sequence[Mapping[str, float]], mismatch_drifts: bool) -> dict[str, float]:
    """The figures of a batch from those of its optimiser steps: counts added up, the last learning rate, the largest maximum, and
    means of the rest. Where `mismatch_drifts`, later steps measure their own drift as mismatch, and the first one alone counts.
    """
    merged = {}
    for name in steps[0]:
        of = steps[:1] if mismatch_drifts and name.startswith("mismatch/") else steps
        values = [step[name] for step in of]
        if name.endswith("/lr"):
            merged[name] = values[-1]
        elif name == MISMATCH_MAX:
            merged[name] = max(values)
        elif name.endswith(("/skipped", "/forwarded_tokens", "/micro_batches")):
            merged[name] = sum(values)
        else:
            merged[name] = sum(values) / len(values)
    return merged
