"""Attention over a packed tree, as a function that transformers' models call instead of their own."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from nbrl.tasks.learner.arrays import Ints
from nbrl.tasks.learner.attention.cpu import SegmentAttention
from nbrl.tasks.learner.attention.gpu import BlockAttention
from nbrl.tasks.learner.attention.segments import plan

NAME = "tree"


class TreeMask(Protocol):
    """The attention mask of one tree, on one device."""

    def attend(self, query_1HTD: Tensor, key_1GTD: Tensor, value_1GTD: Tensor, scaling: float) -> Tensor:
        """Return the outputs [1, T, H, D] of H query heads on G key-value heads."""


def tree_mask(end_T: Ints, device: torch.device) -> TreeMask:
    """Return the mask for `end_T` of PackedTree. Only here does the device decide the implementation."""
    return BlockAttention(end_T, device) if device.type == "cuda" else SegmentAttention(plan(end_T))


def tree_attention(
    module: nn.Module,
    query_1HTD: Tensor,
    key_1GTD: Tensor,
    value_1GTD: Tensor,
    attention_mask: None,
    scaling: float,
    tree: TreeMask,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    return tree.attend(query_1HTD, key_1GTD, value_1GTD, scaling), None


AttentionInterface.register(NAME, tree_attention)
