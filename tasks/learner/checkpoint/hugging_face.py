"""Writes the policy as a Hugging Face folder."""

import shutil
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from nbrl.infra.manifest import MANIFEST
from nbrl.tasks.learner.model.policy_model import PolicyModel
from nbrl.tasks.learner.process.ranks import Ranks
from nbrl.tasks.model_folder.config_json import name_dtype
from nbrl.tasks.model_folder.safetensors_files import WEIGHT_SUFFIXES
from nbrl.tasks.model_folder.source import copied_with_weights


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


def write(folder: Path, policy: PolicyModel, weights: dict[str, Tensor], source: str, dtype: torch.dtype) -> None:
    """Write the folder, on rank 0 only. The weights become numbers of `dtype`. Everything else is copied from the source folder,
    so the tokenizer, the chat template and the configuration do not change, but for the dtype that config.json names.
    """
    policy.lm.save_pretrained(folder, state_dict={name: value.to(dtype) for name, value in weights.items()})
    for entry in copied_with_weights(Path(source)):
        if not entry.name.endswith(WEIGHT_SUFFIXES) and entry.name != MANIFEST:  # a cluster's copy has one
            shutil.copyfile(entry, folder / entry.name)
    name_dtype(folder, str(dtype).removeprefix("torch."))
