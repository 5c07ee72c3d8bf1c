"""Loading a policy from a Hugging Face folder, and sharding it."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tasks.update import attention
from tasks.update.critic import Critic
from tasks.update.errors import UpdateError
from tasks.update.folder import FLOATS, weights
from tasks.update.scorer import Scorer
from tasks.update.sharding import shard


def stored_dtype(path: str) -> torch.dtype:
    """The dtype of the weights in the folder, which exports keep."""
    found = AutoConfig.from_pretrained(path, local_files_only=True).dtype
    if found is None:
        found = getattr(torch, FLOATS[next(iter(weights(Path(path)).values()))["dtype"]])
    return found


def load_sharded(path: str, dtype: torch.dtype, mesh: DeviceMesh, offload: bool = False, recompute: bool = False) -> Scorer:
    """The policy at `path`, sharded over `mesh` as `shard` says.

    `dtype` is that of the passes. Weights are kept in it too, but for 16-bit passes, which keep float32 weights, since an update
    of relative size 1e-6 is lost in 8 bits of mantissa; gradients are then reduced in float32.
    """
    lm = _load(path, dtype)
    scorer = Scorer(lm)
    shard(scorer, lm, dtype, mesh, offload, recompute)
    return scorer


def load_critic(path: str, dtype: torch.dtype, mesh: DeviceMesh, offload: bool = False, recompute: bool = False) -> Critic:
    """A critic begun from the policy at `path`, kept and sharded as load_sharded does."""
    lm = _load(path, dtype)
    critic = Critic(lm)
    shard(critic, lm, dtype, mesh, offload, recompute)
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
