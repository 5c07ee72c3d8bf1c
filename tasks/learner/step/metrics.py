"""Metrics gathered over micro-batches and ranks."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

WEIGHT, SQUARE = "weight", "square"  # sums over tokens of w = pi_trainer / pi_engine and of its square


def ess_share(mean: float, mean_square: float) -> float:
    """Effective sample size of the batch as a share of its tokens, (sum w)^2 / (N sum w^2) (Kish 1965): 1 if all w are equal."""
    return mean**2 / mean_square


class Reported(NamedTuple):
    """Figures of a micro-batch's tokens: sums of the update, and sums and maxima of the mismatch of engine and trainer."""

    update: dict[str, Tensor]
    mismatch: dict[str, Tensor]
    largest: dict[str, Tensor]


class MetricSums:
    """Sums or maxima of scalars by name. Every rank must add the same names."""

    def __init__(self, device: torch.device, reduce: Literal["sum", "max"] = "sum") -> None:
        self._device, self._reduce = device, reduce
        self._by_name: dict[str, Tensor] = {}

    def add(self, scalars: Mapping[str, Tensor]) -> None:
        for name, scalar in scalars.items():
            value = scalar.detach().double()
            if name in self._by_name:
                earlier = self._by_name[name]
                value = earlier + value if self._reduce == "sum" else torch.maximum(earlier, value)
            self._by_name[name] = value

    def gather(self) -> dict[str, float]:
        """Collective. The sums or maxima over all ranks."""
        names = sorted(self._by_name)
        if not names:
            return {}
        values = torch.stack([self._by_name[name] for name in names]).to(self._device)
        dist.all_reduce(values, op=dist.ReduceOp.SUM if self._reduce == "sum" else dist.ReduceOp.MAX)
        return dict(zip(names, values.tolist(), strict=True))
