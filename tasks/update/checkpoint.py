"""A checkpoint folder: `state/` (sharded, to go on from) and with a critic the same of it in `critic/`, `hf/` (safetensors, to
serve) and `result.json` (what the order gave).

It is made as `<folder>.partial` and renamed once whole, so a folder of that name is either absent or complete.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from tasks.update.errors import UpdateError
from tasks.update.folder import WEIGHT_SUFFIXES
from tasks.update.orders import UpdateOrder, UpdateResult
from tasks.update.scorer import Scorer

STATE, CRITIC, HF, RESULT = "state", "critic", "hf", "result.json"


def partial(folder: str) -> Path:
    return Path(f"{folder}.partial")


def earlier_result(order: UpdateOrder) -> UpdateResult | None:
    """The result of the order when it was carried out before."""
    path = Path(order.checkpoint_out) / RESULT
    if not Path(order.checkpoint_out).exists():
        return None
    if not path.is_file():
        raise UpdateError(f"{order.checkpoint_out} exists and is not a finished checkpoint")
    result = UpdateResult.model_validate_json(path.read_text())
    if result.iteration != order.iteration:
        raise UpdateError(f"{order.checkpoint_out} is of iteration {result.iteration}, not {order.iteration}")
    return result


def identity(folder: str) -> str:
    """What tells a checkpoint from every other wherever it was copied to. Raises UpdateError when it is not a finished one."""
    path = Path(folder) / RESULT
    if not path.is_file():
        raise UpdateError(f"{folder} is not a finished checkpoint")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def finish(folder: str, result: UpdateResult) -> None:
    """Rank 0 only: make the partial folder the checkpoint."""
    (partial(folder) / RESULT).write_text(result.model_dump_json())
    os.rename(partial(folder), folder)


def clear_partial(folder: str) -> None:
    """Rank 0 only: an empty partial folder, whatever an interrupted order left."""
    shutil.rmtree(partial(folder), ignore_errors=True)
    partial(folder).mkdir(parents=True)


def _rng_key() -> str:
    return f"rank{dist.get_rank()}"


def save_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Collective. Raises UpdateError on every rank when any could not write."""
    weights, optim = get_state_dict(model, optimizer)
    rng = {_rng_key(): torch.get_rng_state()}
    try:
        dcp.save({"model": weights, "optim": optim, "steps": torch.tensor(steps), "rng": rng}, checkpoint_id=folder)
    except CheckpointException as error:
        raise UpdateError(f"cannot write {folder}: {error}") from error


def load_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
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


def gather_weights(scorer: Scorer) -> dict[str, Tensor]:
    """Collective. The whole model's weights on rank 0's CPU, tied ones once; nothing on the others."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = cast(dict[str, Tensor], get_model_state_dict(scorer.lm, options=options))
    names = (name for name, _ in scorer.lm.named_parameters(remove_duplicate=False))
    tied = set(names) - {name for name, _ in scorer.lm.named_parameters()}
    return {name: value for name, value in weights.items() if name not in tied}


def write_hf(folder: Path, scorer: Scorer, weights: dict[str, Tensor], source: str, dtype: torch.dtype) -> None:
    """Rank 0 only. Everything but the weights is the source folder's own, so the tokenizer, the chat template and the
    configuration stay as they were.
    """
    scorer.lm.save_pretrained(folder, state_dict={name: value.to(dtype) for name, value in weights.items()})
    for entry in Path(source).iterdir():
        if entry.is_file() and not entry.name.endswith(WEIGHT_SUFFIXES):
            shutil.copyfile(entry, folder / entry.name)
