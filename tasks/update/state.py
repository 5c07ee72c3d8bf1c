"""The sharded state of a model with its optimiser, on disk: weights, moments, optimiser steps and every rank's generator."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tasks.update.errors import UpdateError


def check(folder: Path) -> None:
    """Raises UpdateError when there is no state at `folder`, which is below a checkpoint's."""
    if not folder.is_dir():
        raise UpdateError(f"{folder.parent} has no {folder.name}/: it was made with other settings")


def _rng_key() -> str:
    return f"rank{dist.get_rank()}"


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Collective. Raises UpdateError on every rank when any could not write."""
    weights, optim = get_state_dict(model, optimizer)
    rng = {_rng_key(): torch.get_rng_state()}
    try:
        dcp.save({"model": weights, "optim": optim, "steps": torch.tensor(steps), "rng": rng}, checkpoint_id=folder)
    except CheckpointException as error:
        raise UpdateError(f"cannot write {folder}: {error}") from error


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Collective. Fills model, optimizer and the generators, and gives the number of optimiser steps taken.

    A rank that did not exist when the state was saved keeps its own generator.
    """
    weights, optim = get_state_dict(model, optimizer)
    steps = torch.tensor(0)
    state = {"model": weights, "optim": optim, "steps": steps}
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    rng = torch.get_rng_state()
    if f"rng.{_rng_key()}" in saved:
        state["rng"] = {_rng_key(): rng}
    try:
        dcp.load(state, checkpoint_id=folder)
    except CheckpointException as error:
        raise UpdateError(f"cannot read {folder}: {error}") from error
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optim)
    torch.set_rng_state(rng)
    return int(steps)
