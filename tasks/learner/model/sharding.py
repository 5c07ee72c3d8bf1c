"""Shards a model over the ranks, with options that save memory or time."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed._composable import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Layers:
    """How decoder layers are kept and run.

    `offload`: this rank's shards, their gradients and optimiser state are kept in host memory and copied to the device one
    layer at a time. `recompute`: a layer keeps only its input and is forwarded again in the backward pass. `compiled`: torch
    compiles the layers, once for all lengths.
    """

    offload: bool = False
    recompute: bool = False
    compiled: bool = False


def shard(root: nn.Module, lm: PreTrainedModel, dtype: torch.dtype, mesh: DeviceMesh, how: Layers) -> None:
    """Shard each decoder layer of `lm` below `root`, and then the rest of `root`; FSDP moves them to the mesh's device.

    Gradients are summed over ranks, not averaged: no factor that depends on the number of ranks goes through the backward pass,
    whose norms round in float32."""
    half = dtype.itemsize == 2
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    policy = CPUOffloadPolicy() if how.offload else OffloadPolicy()
    layer_classes = set(lm._no_split_modules or ())
    for module in reversed(list(root.modules())):  # FSDP wants inner modules first
        if type(module).__name__ in layer_classes:
            if how.compiled:
                module.forward = torch.compile(module.forward, dynamic=True)  # within the hooks that follow
            if how.recompute:  # inside FSDP's hooks, so that the second forward has weights too; it draws no random numbers
                checkpoint(module, preserve_rng_state=False)
            fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=policy)
    fully_shard(root, mesh=mesh, mp_policy=precision, offload_policy=policy)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # otherwise FSDP requests a scaled sum, which gloo lacks
