"""Loading a policy from a Hugging Face folder, and sharding it."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tasks.update import attention
from tasks.update.critic import Critic
from tasks.update.errors import UpdateError
from tasks.update.folder import FLOATS, weights
from tasks.update.scorer import Scorer


def stored_dtype(path: str) -> torch.dtype:
    """The dtype of the weights in the folder, which exports keep."""
    found = AutoConfig.from_pretrained(path, local_files_only=True).dtype
    if found is None:
        found = getattr(torch, FLOATS[next(iter(weights(Path(path)).values()))["dtype"]])
    return found


def load_sharded(path: str, dtype: torch.dtype, mesh: DeviceMesh) -> Scorer:
    """The policy at `path`, each decoder layer and the rest sharded over `mesh`.

    `dtype` is that of the passes. Weights are kept in it too, but for 16-bit passes, which keep float32 weights, since an update
    of relative size 1e-6 is lost in 8 bits of mantissa; gradients are then reduced in float32.
    """
    lm = _load(path, dtype)
    scorer = Scorer(lm)
    _shard(scorer, lm, dtype, mesh)
    return scorer


def load_critic(path: str, dtype: torch.dtype, mesh: DeviceMesh) -> Critic:
    """A critic begun from the policy at `path`, kept and sharded as load_sharded does."""
    lm = _load(path, dtype)
    critic = Critic(lm)
    _shard(critic, lm, dtype, mesh)
    return critic


def _load(path: str, dtype: torch.dtype) -> PreTrainedModel:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=torch.float32 if dtype.itemsize == 2 else dtype,
        attn_implementation=attention.NAME,
        local_files_only=True,
        output_loading_info=True,
    )
    lm: PreTrainedModel = loaded[0]
    loading: dict[str, set[str]] = loaded[1]
    if lost := sorted(loading["missing_keys"]):  # transformers would begin them at random
        raise UpdateError(f"{path} lacks the weights {lost[0]}; fetch or save it again")
    if odd := sorted(name for name in loading["unexpected_keys"] if not name.endswith("inv_freq")):
        raise UpdateError(f"{path} holds the weights {odd[0]}, for which its configuration has no place")
    return lm


def _shard(root: nn.Module, lm: PreTrainedModel, dtype: torch.dtype, mesh: DeviceMesh) -> None:
    """Shard each decoder layer of `lm` that is below `root`, and then the rest of `root`.

    Gradients are summed over ranks, not averaged: no factor that depends on the number of ranks goes through the backward pass,
    whose norms round in float32.
    """
    root.to(mesh.device_type)
    half = dtype.itemsize == 2
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    layer_classes = set(lm._no_split_modules or ())
    for module in reversed(list(root.modules())):  # FSDP wants inner modules first
        if type(module).__name__ in layer_classes:
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(root, mesh=mesh, mp_policy=policy)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # or gloo is asked for a scaled sum, which it does not have
