"""Writes the policy as a Hugging Face folder."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from nbrl.infra.manifest import MANIFEST
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.model.policy_model import PolicyModel
from nbrl.tasks.learner.process.ranks import Ranks
from nbrl.tasks.model_folder.config_json import name_dtype
from nbrl.tasks.model_folder.safetensors_files import WEIGHT_SUFFIXES
from nbrl.tasks.model_folder.source import copied_with_weights
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
    """Return each number as one of the two beside it in bfloat16, the nearer one more likely; one that bfloat16 has
    stays itself.
    """
    generator = torch.Generator(weight.device).manual_seed(seed)
    bits = weight.to(torch.float32).contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << LOST_BITS, bits.shape, generator=generator, dtype=torch.int32, device=weight.device)
    drawn = ((bits + noise) & -(1 << LOST_BITS)).view(torch.float32)
    return torch.where(weight.isfinite(), drawn, weight).to(torch.bfloat16)


def gather_weights(policy: PolicyModel, ranks: Ranks, device: torch.device, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Collective. Return all weights of the model on rank 0's CPU, tied ones once, and nothing on the other ranks.

    Each rank rounds its shards to `dtype` before they are gathered, unless it is None.
    """
    weights = {}
    tied = {name for name, _ in policy.lm.named_parameters(remove_duplicate=False)}
    tied -= {name for name, _ in policy.lm.named_parameters()}
    for name, value in policy.lm.state_dict().items():
        if name in tied:
            continue
        local = value.to_local() if isinstance(value, DTensor) else value
        whole = local.to(device, dtype)
        if isinstance(value, DTensor):
            sharded = DTensor.from_local(whole, ranks.mesh, value.placements, shape=value.shape, stride=value.stride())
            whole = sharded.full_tensor()
        if ranks.rank == 0:
            weights[name] = whole.detach().cpu()
    return weights


def write(folder: Path, policy: PolicyModel, weights: dict[str, Tensor], source: str, rounded: Rounding) -> None:
    """Rank 0 only. Everything except the weights is copied from the source folder, so the tokenizer, the chat template and the
    configuration do not change, but for the dtype that config.json names.
    """
    policy.lm.save_pretrained(folder, state_dict={name: rounded(name, value) for name, value in weights.items()})
    for entry in copied_with_weights(Path(source)):
        if not entry.name.endswith(WEIGHT_SUFFIXES) and entry.name != MANIFEST:  # a cluster's copy has one
            shutil.copyfile(entry, folder / entry.name)
    name_dtype(folder, str(rounded.dtype).removeprefix("torch."))
