"""SGLang's LoRA layers on a CPU: they ask for pinned memory, which only an accelerator has. Here their memory is not pinned.

Runs in the engine's environment.
"""

from collections.abc import Callable
from typing import Any

import torch

MAKERS = ("arange", "empty", "tensor", "zeros")  # those that SGLang calls with pin_memory


def install() -> None:
    """Install it for the whole process."""
    for name in MAKERS:
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor  # type: ignore[method-assign, assignment]


def _unpinned(maker: Callable[..., Any]) -> Callable[..., Any]:
    def make(*arguments: Any, pin_memory: bool = False, **options: Any) -> Any:
        return maker(*arguments, **options)

    return make
