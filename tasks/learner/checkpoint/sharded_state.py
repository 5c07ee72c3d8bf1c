"""The sharded state of a model with its optimiser, on disk: weights, moments, optimiser steps and every rank's generators.

It is saved in shards and loaded by any number of ranks.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.checkpoint.sharded_reader import ShardedLoadPlanner, ShardedReader

WITHOUT_FROZEN = StateDictOptions(strict=False)


class Writing:
    """A state that is being written in the background, from a copy, so that the model may change meanwhile."""

    def __init__(self, folder: Path, future: Future[Metadata]) -> None:
        self._folder, self._future = folder, future

    def wait(self) -> None:
        """Return when writing has ended, successfully or not."""
        self._future.exception()

    def check(self) -> None:
        """Wait for the end. Raises UpdateError if this or another rank could not write."""
        if isinstance(error := self._future.exception(), CheckpointException):
            raise UpdateError(f"cannot write {self._folder}, is the disk full? {_reason(error)}") from error
        self._future.result()


def check(folder: Path, model: nn.Module) -> None:
    """Raises UpdateError if there is no state at `folder`, a subfolder of a checkpoint, or if it does not match the trained
    weights of `model`.
    """
    if not folder.is_dir():
        raise UpdateError(f"{folder.parent} has no {folder.name}/: it was made with other settings")
    metadata = ShardedReader(folder).read_metadata().state_dict_metadata
    saved = {key: tuple(each.size) for key, each in metadata.items() if isinstance(each, TensorStorageMetadata)}
    saved = {key.removeprefix("model."): size for key, size in saved.items() if key.startswith("model.")}
    expected = {name: tuple(value.shape) for name, value in _trained(model, model.state_dict()).items()}
    if differing := sorted(name for name in saved.keys() | expected.keys() if saved.get(name) != expected.get(name)):
        first = differing[0]
        shapes = [" x ".join(map(str, sizes[first])) if first in sizes else "none" for sizes in (saved, expected)]
        raise UpdateError(
            f"{folder} is of another model or other adapters than those of the settings: {first} is {shapes[0]} there and "
            f"{shapes[1]} here"
        )


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, group: dist.ProcessGroup) -> Writing:
    """Collective. Copy the state to host memory and begin to write it. `group` contains all ranks, over gloo, and must not be
    used otherwise until that is done.
    """
    weights, optim = _states(model, optimizer)
    state = {"model": weights, "optim": optim, "steps": torch.tensor(steps), "rng": {_rank(): _generators()}}
    future = dcp.async_save(state, checkpoint_id=folder, process_group=group)
    return Writing(folder, cast(Future[Metadata], future))


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Collective. Load model, optimizer and generators, and return the number of optimiser steps taken. Raises UpdateError on
    every rank if any could not read.

    A rank that did not exist when the state was saved keeps its own generators.
    """
    weights, optim = _states(model, optimizer)
    steps = torch.tensor(0)
    reader = ShardedReader(folder)
    saved = reader.read_metadata().state_dict_metadata
    mine = {kind: generator for kind, generator in _generators().items() if f"rng.{_rank()}.{kind}" in saved}
    state = {"model": weights, "optim": optim, "steps": steps} | ({"rng": {_rank(): mine}} if mine else {})
    try:
        dcp.load(state, storage_reader=reader, planner=ShardedLoadPlanner())
    except CheckpointException as error:
        raise UpdateError(f"cannot read {folder}: {_reason(error)}") from error
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optim, options=WITHOUT_FROZEN)
    if "cpu" in mine:
        torch.set_rng_state(mine["cpu"])
    if "cuda" in mine:
        torch.cuda.set_rng_state(mine["cuda"])
    return int(steps)


def _states(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states of the trained weights; frozen weights come with the model."""
    weights, optim = get_state_dict(model, optimizer)
    return _trained(model, weights), optim


def _trained(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    frozen = {name for name, parameter in model.named_parameters(remove_duplicate=False) if not parameter.requires_grad}
    return {name: value for name, value in weights.items() if name not in frozen}


def _reason(error: CheckpointException) -> str:
    """Return the error in one line; its own message contains every rank's stack."""
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {type(cause).__name__}: {cause}".splitlines()[0].rstrip(": ")


def _rank() -> str:
    return f"rank{dist.get_rank()}"


def _generators() -> dict[str, Tensor]:
    """Return the states of this rank's generators: the host's, and its GPU's where it uses one."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states
