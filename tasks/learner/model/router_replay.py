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

UNKNOWN = -1
TOPK = (torch.topk, torch.Tensor.topk)


class RouterReplay:
    """Replays routes in all layers of a model that have experts: each chooses the largest of its scores by `topk`."""

    def __init__(self, lm: PreTrainedModel) -> None:
        """Wrap the blocks that own experts. Raises UpdateError if there are none."""
        config = lm.config.get_text_config()
        self._chosen, self._layers = int(getattr(config, "num_experts_per_tok", None) or 0), int(config.num_hidden_layers)
        self._route_SLK: Tensor | None = None
        layer_classes = set(lm._no_split_modules or ())
        layers = [module for module in lm.modules() if type(module).__name__ in layer_classes]
        blocks = [(number, block) for number, layer in enumerate(layers) for block in layer.modules() if _owns_experts(block)]
        if not blocks or not self._chosen or len(layers) != self._layers:
            raise UpdateError(
                f"a {lm.config.model_type} model has no experts whose choice could be replayed: set update.router_replay to false"
            )
        for number, block in blocks:
            block.forward = self._replaying(number, block.forward)

    def set(self, route_SX: Tensor | None) -> None:
        """Set the routes of the tokens that are forwarded next, [S, layers * experts of a token]; with None all layers choose.

        They hold for the backward pass as well, in which layers may be forwarded again. Raises UpdateError if they are of another
        model.
        """
        if route_SX is not None and route_SX.shape[1] != self._layers * self._chosen:
            raise UpdateError(
                f"the engine named {route_SX.shape[1]} experts of a token, and the model has {self._layers} layers of "
                f"{self._chosen}"
            )
        self._route_SLK = None if route_SX is None else route_SX.view(-1, self._layers, self._chosen)

    def _replaying(self, number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def replayed(*arguments: Any, **options: Any) -> Any:
            if self._route_SLK is None:
                return forward(*arguments, **options)
            with _Chosen(self._route_SLK[:, number]):
                return forward(*arguments, **options)

        return replayed


class _Chosen(TorchFunctionMode):
    """Takes given experts in place of the largest scores, where they are known."""

    def __init__(self, route_SK: Tensor) -> None:
        super().__init__()
        self._route_SK = route_SK

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in TOPK or found.indices.shape != self._route_SK.shape:
            return found
        indices_SK = torch.where(self._route_SK == UNKNOWN, found.indices, self._route_SK)
        return torch.return_types.topk((args[0].gather(-1, indices_SK), indices_SK))


def _owns_experts(module: nn.Module) -> bool:
    return any(name == "experts" for name, _ in module.named_children())
