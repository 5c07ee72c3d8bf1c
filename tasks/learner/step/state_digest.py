"""The digest of a state in memory, by which an update that is repeated is compared with the first time."""

import hashlib
import json
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from nbrl.tasks.learner.step.optimizer import OptimizedModel

WHOLE_NUMBERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def digest_of(models: Iterable[OptimizedModel], device: torch.device) -> str:
    """Collective. Return the digest of all trained weights, their moments and the steps taken; the same for any sharding.

    Of each tensor the bits of its numbers are summed, modulo 2^64. This finds a difference between two computations of the same
    state, and is no proof against one that was chosen.
    """
    steps, sums = list[int](), list[Tensor]()
    for model in models:
        steps.append(model.steps)
        sums += [_sum(tensor).to(device) for tensor in model.tensors()]
    sums_N = torch.stack(sums)
    dist.all_reduce(sums_N)
    return hashlib.sha256(json.dumps([steps, sums_N.tolist()]).encode()).hexdigest()


def _sum(tensor: Tensor) -> Tensor:
    """Of this rank's part."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().contiguous().view(WHOLE_NUMBERS[local.element_size()]).sum(dtype=torch.int64)
