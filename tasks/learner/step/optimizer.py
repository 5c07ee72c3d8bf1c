"""A sharded model with its optimiser: the policy, or the critic."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

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
        """Collective. Take a step with the gradients in the parameters, unless they or the loss are not finite or every
        gradient is 0.
        """
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
        """Taken so far."""
        return self._steps

    def tensors(self) -> Iterator[Tensor]:
        """The trained weights and their moments, in the order of the weights."""
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
        """Collective. Raises UpdateError on every rank if any could not read."""
        self._steps = sharded_state.load(folder, self._model, self._optimizer)
