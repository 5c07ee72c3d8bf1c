"""Loading a policy from a Hugging Face folder, and sharding it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tasks.update import attention
from tasks.update.critic import Critic
from tasks.update.errors import UpdateError
from tasks.update.folder import FLOATS, weights
from tasks.update.lora import adapt
from tasks.update.scorer import Scorer
from tasks.update.settings import LoraSettings
from tasks.update.sharding import shard


@dataclass(frozen=True)
class Adapters:
    """What to put on a model that is loaded, and the seed that they begin from."""

    settings: LoraSettings
    seed: int


def stored_dtype(path: str) -> torch.dtype:
    """The dtype of the weights in the folder, which exports keep."""
    found = AutoConfig.from_pretrained(path, local_files_only=True).dtype
    if found is None:
        found = getattr(torch, FLOATS[next(iter(weights(Path(path)).values()))["dtype"]])
    return found


def load_sharded(
    path: str,
    dtype: torch.dtype,
    mesh: DeviceMesh,
    offload: bool = False,
    recompute: bool = False,
    adapters: Adapters | None = None,
) -> Scorer:
    """The policy at `path`, sharded over `mesh` as `shard` says.

    `dtype` is that of the passes. Weights are kept in it too, but for 16-bit passes, which keep float32 weights, since an update
    of relative size 1e-6 is lost in 8 bits of mantissa; gradients are then reduced in float32. Under adapters nothing updates
    the weights, so those stored in 16 bits for passes in the same are kept so.
    """
    lm = _load(path, dtype, adapters)
    scorer = Scorer(lm)
    shard(scorer, lm, dtype, mesh, offload, recompute)
    return scorer


def load_critic(
    path: str,
    dtype: torch.dtype,
    mesh: DeviceMesh,
    offload: bool = False,
    recompute: bool = False,
    adapters: Adapters | None = None,
) -> Critic:
    """A critic begun from the policy at `path`, kept and sharded as load_sharded does."""
    lm = _load(path, dtype, adapters)
    critic = Critic(lm)
    critic.head.to(_kept(dtype))
    shard(critic, lm, dtype, mesh, offload, recompute)
    return critic


def _kept(dtype: torch.dtype) -> torch.dtype:
    """Of what is trained, given that of the passes."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def _load(path: str, dtype: torch.dtype, adapters: Adapters | None) -> PreTrainedModel:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype if adapters and stored_dtype(path) == dtype else _kept(dtype),
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
    if adapters is not None:
        adapt(lm, adapters.settings, _kept(dtype), adapters.seed)
    return lm
