"""Lets a mixture of experts choose the experts that the engine chose (rollout routing replay, arXiv 2510.11370).

In 16 bits engine and trainer choose different experts for some tokens, whose log-probs then differ by far more than rounding.
The weights of the chosen experts are the trainer's own, so that the router is trained.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.model_folder.config_json import CHOSEN, experts_of

UNKNOWN = -1
TOPK = (torch.topk, torch.Tensor.topk)


class RouterReplay:
    """Replays routes in all layers of a model that have experts: each chooses the largest of its scores by `topk`."""

    def __init__(self, lm: PreTrainedModel) -> None:
        """Wrap the blocks that own experts; `check` says whether that acts."""
        config = lm.config.get_text_config()
        self._chosen, self._layers = int(getattr(config, CHOSEN, None) or 0), int(config.num_hidden_layers)
        self._experts, self._model = experts_of(config), lm.config.model_type
        self._route_SLK: Tensor | None = None
        self._taken = set[nn.Module]()
        layer_classes = set(lm._no_split_modules or ())
        layers = [module for module in lm.modules() if type(module).__name__ in layer_classes]
        blocks = [(number, block) for number, layer in enumerate(layers) for block in layer.modules() if _owns_experts(block)]
        self._blocks = {block for _, block in blocks} if len(layers) == self._layers else set()
        for number, block in blocks:
            block.forward = self._replaying(number, block, block.forward)

    def set(self, route_SX: Tensor | None) -> None:
        """Set the routes of the tokens that are forwarded next, [S, layers * experts of a token]; with None all layers choose.

        They hold for the backward pass as well, in which layers may be forwarded again.
        """
        self._route_SLK = None if route_SX is None else route_SX.view(-1, self._layers, self._chosen)

    def check(self, forward: Callable[[Tensor], object]) -> None:
        """Raises UpdateError unless every block took what it was given when `forward` forwards two tokens with such routes."""
        if self._blocks and self._chosen and self._experts:
            with torch.no_grad():
                forward(torch.full((2, self._layers * self._chosen), UNKNOWN))
        self.set(None)
        if not self._blocks or self._taken != self._blocks:
            raise UpdateError(
                f"a {self._model} model has no experts whose choice could be replayed, as it takes them otherwise than as the "
                "largest scores of all: set update.router_replay to false"
            )

    def _replaying(self, number: int, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def replayed(*arguments: Any, **options: Any) -> Any:
            if self._route_SLK is None:
                return forward(*arguments, **options)
            with _Chosen(self._route_SLK[:, number], self._experts, lambda: self._taken.add(block)):
                return forward(*arguments, **options)

        return replayed


class _Chosen(TorchFunctionMode):
    """Takes given experts in place of the largest scores of all experts, where they are known, and then says so."""

    def __init__(self, route_SK: Tensor, experts: int, taken: Callable[[], None]) -> None:
        super().__init__()
        self._route_SK, self._experts, self._say_taken = route_SK, experts, taken

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in TOPK or args[0].shape[-1] != self._experts or found.indices.shape != self._route_SK.shape:
            return found
        self._say_taken()
        indices_SK = torch.where(self._route_SK == UNKNOWN, found.indices, self._route_SK)
        return torch.return_types.topk((args[0].gather(-1, indices_SK), indices_SK))


def _owns_experts(module: nn.Module) -> bool:
    return any(name == "experts" for name, _ in module.named_children())
