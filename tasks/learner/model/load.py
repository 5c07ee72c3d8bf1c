"""Loading a policy from a Hugging Face folder, and sharding it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.distributed._composable import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import AutoModelForCausalLM, PreTrainedModel

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.model.forward import FORWARDS, Forward
from nbrl.tasks.learner.model.lora import adapt
from nbrl.tasks.learner.model.policy_model import Critic, PolicyModel
from nbrl.tasks.learner.model.router_replay import RouterReplay
from nbrl.tasks.learner.settings import LoraSettings
from nbrl.tasks.model_folder.safetensors_files import main_dtype

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# Errors that transformers raises if a configuration makes no model or does not match the weights.
NO_MODEL = (ArithmeticError, AttributeError, KeyError, RuntimeError, StrictDataclassError, TypeError, ValueError)


@dataclass(frozen=True)
class Layers:
    """Options of decoder layers, and the `forward` of the whole model.

    `offload`: this rank's shards, their gradients and optimiser state are kept in host memory and copied to the device one
    layer at a time. `recompute`: a layer keeps only its input and is forwarded again in the backward pass. `compiled`: torch
    compiles the layers, once for all lengths.
    """

    offload: bool = False
    recompute: bool = False
    compiled: bool = False
    forward: Forward = FORWARDS[0]


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


@dataclass(frozen=True)
class Adapters:
    """The adapters to put on a loaded model, and the seed that initialises them."""

    settings: LoraSettings
    seed: int


def stored_dtype(path: str) -> torch.dtype:
    """Return the dtype of the weights in the folder, which exports keep."""
    return DTYPES[main_dtype(Path(path))]


def load_sharded(
    path: str,
    dtype: torch.dtype,
    mesh: DeviceMesh,
    how: Layers | None = None,
    adapters: Adapters | None = None,
    frozen: bool = False,
    replays: bool = False,
) -> PolicyModel:
    """Load the policy at `path`, sharded over `mesh` as `shard` says.

    `dtype` is that of the passes. Weights are kept in it too, except that 16-bit passes keep float32 weights, since an update
    of relative size 1e-6 is lost in 8 bits of mantissa; gradients are then reduced in float32. With adapters, and where the
    model is `frozen`, nothing updates the weights, so weights stored in the 16-bit dtype of the passes are kept in it. One that
    `replays` can be given the experts of each token.
    """
    how = how or Layers()
    lm = _load(path, dtype, how.forward, adapters, frozen)
    policy_model = PolicyModel(lm, how.forward)
    if replays:  # before the layers get hooks
        policy_model.replay = RouterReplay(lm)
        policy_model.replay.check(policy_model.forward_two)
    shard(policy_model, lm, dtype, mesh, how)
    return policy_model


def load_critic(
    path: str,
    dtype: torch.dtype,
    mesh: DeviceMesh,
    how: Layers | None = None,
    adapters: Adapters | None = None,
) -> Critic:
    """Load a critic from the policy at `path`, with the dtypes and the sharding of load_sharded."""
    how = how or Layers()
    lm = _load(path, dtype, how.forward, adapters)
    critic = Critic(lm)
    critic.head.to(_kept(dtype))
    shard(critic, lm, dtype, mesh, how)
    return critic


def _kept(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of trained weights, given that of the passes."""
    return torch.float32 if dtype.itemsize == 2 else dtype


def _load(path: str, dtype: torch.dtype, forward: Forward, adapters: Adapters | None, frozen: bool = False) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype if (adapters or frozen) and stored_dtype(path) == dtype else _kept(dtype),
            attn_implementation=forward.implementation,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # _check_loaded reports them
        )
    except NO_MODEL as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UpdateError(f"{path} cannot be loaded as its config.json says: {reason}") from error
    lm: PreTrainedModel = loaded[0]
    _check_loaded(path, lm, loaded[1])
    if adapters is not None:
        adapt(lm, adapters.settings, _kept(dtype), adapters.seed)
    return lm


def _check_loaded(path: str, lm: PreTrainedModel, loading: dict[str, Any]) -> None:
    """Raises UpdateError, in one sentence, unless the model matches the contents of its folder."""
    if other := sorted(loading["mismatched_keys"]):
        name, stored, configured = other[0]
        raise UpdateError(f"{path} holds {name} of shape {list(stored)}, but by its config.json it is {list(configured)}")
    if lost := sorted(loading["missing_keys"]):  # transformers would initialise them at random
        raise UpdateError(f"{path} lacks the weights {lost[0]}; fetch or save it again")
    if unexpected := sorted(name for name in loading["unexpected_keys"] if not name.endswith("inv_freq")):
        raise UpdateError(f"{path} contains weights that config.json does not describe, e.g. {unexpected[0]}")
    if lm.config.tie_word_embeddings and lm.get_output_embeddings().weight is not lm.get_input_embeddings().weight:
        raise UpdateError(
            f"{path} holds an lm_head.weight other than its embedding, but its config.json says tie_word_embeddings true: "
            "set that to false, or remove the lm_head.weight"
        )
