"""A sharded model with its optimiser: the policy, or the critic."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from nbrl.tasks.learner.checkpoint import sharded_state
from nbrl.tasks.learner.settings import UpdateSettings


@dataclass(frozen=True)
class Stepped:
    """The outcome of an optimiser step; `skipped` says why it was not taken, and is empty if it was."""

    grad_norm: float
    lr: float
    skipped: str


class OptimizedModel:
    """AdamW over the parameters of a model that are not frozen, and the number of steps taken.

    `rate` gives the learning rate of a step, from 0.
    """

    def __init__(self, model: nn.Module, settings: UpdateSettings, rate: Callable[[int], float]) -> None:
        self._model, self._settings, self._rate = model, settings, rate
        self._steps = 0
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=0.0, fused=True)
        # Adam creates its moments in its first step. This step, which moves nothing, gives every checkpoint moments.
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        self._optimizer.zero_grad()
        for moments in self._optimizer.state.values():
            moments["step"].zero_()

    def step(self, loss: float) -> Stepped:
        """Collective. Take a step with the gradients in the parameters, unless they or the loss are not finite or all are 0."""
        settings, lr = self._settings, self._rate(self._steps)
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), settings.grad_clip)
        grad_norm = (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
        skipped = ""
        if not math.isfinite(loss):
            skipped = f"the loss is {loss}"
        elif not math.isfinite(grad_norm):
            skipped = f"the gradient's norm is {grad_norm}"
        elif grad_norm == 0:  # momentum and weight decay would still move the weights
            skipped = "the gradient is 0: nothing is to be learnt"
        else:
            for group in self._optimizer.param_groups:
                group.update(lr=lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay)
            self._optimizer.step()
            self._steps += 1
        self._optimizer.zero_grad()
        return Stepped(grad_norm, lr, skipped)

    @property
    def steps(self) -> int:
        """Return the number of steps taken."""
        return self._steps

    def tensors(self) -> Iterator[Tensor]:
        """Yield the trained weights and their moments, in the order of the weights."""
        for parameter in self._optimizer.param_groups[0]["params"]:
            moments = self._optimizer.state[parameter]
            yield from (parameter, moments["exp_avg"], moments["exp_avg_sq"])

    def save(self, folder: Path, group: dist.ProcessGroup) -> sharded_state.Writing:
        """Collective. Begin to write the current state, over a `group` that is not used otherwise until that is done."""
        return sharded_state.save(folder, self._model, self._optimizer, self._steps, group)

    def check(self, folder: Path) -> None:
        """Raises UpdateError if `folder` has no state that `load` could read."""
        sharded_state.check(folder, self._model)

    def load(self, folder: Path) -> None:
        """Collective. Load the state. Raises UpdateError on every rank if any could not read."""
        self._steps = sharded_state.load(folder, self._model, self._optimizer)


def learning_rate(
    step: int,
    peak: float,
    warmup: int,
    schedule: Literal["constant", "linear", "cosine"] = "constant",
    decay_steps: int | None = None,
    floor: float = 0.0,
) -> float:
    """Rate of optimiser step `step`, from 0: up to `peak` over `warmup` steps, then down to floor * peak at step `decay_steps`.

    With p the fraction of the steps from the end of the warm-up to `decay_steps`: linear 1 - (1 - floor) p, cosine
    floor + (1 - floor) (1 + cos(pi p)) / 2.
    """
    warm = peak * min(1.0, (step + 1) / max(1, warmup))
    if decay_steps is None or step < warmup:
        return warm
    way = min(1.0, (step - warmup) / (decay_steps - warmup))
    if schedule == "linear":
        return peak * (1 - (1 - floor) * way)
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * way)) / 2)


def digest_of(models: Iterable[OptimizedModel], device: torch.device) -> str:
    """Collective. Return the digest of all trained weights, their moments and the steps taken; the same for the same sharding.

    Of each rank's part of a tensor the bits of its numbers are summed, modulo 2^64. This finds a difference between two
    computations of the same state, and is no proof against one that was chosen.
    """
    steps, sums = list[int](), list[Tensor]()
    for model in models:
        steps.append(model.steps)
        sums += [_sum(tensor).to(device) for tensor in model.tensors()]
    sums_N = torch.stack(sums)
    dist.all_reduce(sums_N)
    return hashlib.sha256(json.dumps([steps, sums_N.tolist()]).encode()).hexdigest()


def _sum(tensor: Tensor) -> Tensor:
    """Return the sum of this rank's part, eight bytes at a time: without a copy, and as fast as memory is read."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    bytes_B = local.detach().contiguous().view(-1).view(torch.uint8)
    whole = len(bytes_B) // 8 * 8
    return bytes_B[:whole].view(torch.int64).sum() + bytes_B[whole:].sum(dtype=torch.int64)
