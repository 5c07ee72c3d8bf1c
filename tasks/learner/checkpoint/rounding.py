"""How weights become the numbers of an export."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.seeds import derive_seed

LOST_BITS = 16  # of a float32 that bfloat16 does not keep


@dataclass(frozen=True)
class Rounding:
    """To the nearest number of `dtype` or, with a `seed`, up or down so that the mean over many seeds is the weight itself.

    Raises UpdateError for a dtype that has no stochastic rounding.
    """

    dtype: torch.dtype
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None and self.dtype != torch.bfloat16:
            raise UpdateError(
                f"publish.rounding stochastic is for weights in bfloat16, these become {self.dtype}: set it to nearest"
            )

    def __call__(self, name: str, weight: Tensor) -> Tensor:
        """The weight of this name, rounded."""
        return weight.to(self.dtype) if self.seed is None else stochastic(weight, derive_seed(self.seed, "rounding", name))


def stochastic(weight: Tensor, seed: int) -> Tensor:
    """Each number as one of the two beside it in bfloat16, the nearer one more likely; one that bfloat16 has stays itself."""
    generator = torch.Generator(weight.device).manual_seed(seed)
    bits = weight.to(torch.float32).contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << LOST_BITS, bits.shape, generator=generator, dtype=torch.int32, device=weight.device)
    drawn = ((bits + noise) & -(1 << LOST_BITS)).view(torch.float32)
    return torch.where(weight.isfinite(), drawn, weight).to(torch.bfloat16)
