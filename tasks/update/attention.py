"""Attention over a packed tree, as a function that transformers' models call in place of their own."""

# ruff: noqa: N803, N806 - suffixes of tensor names are shapes

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from tasks.update.segments import Plan

NAME = "tree"


class TreeMask:
    """A plan on a device: the blocks' indices laid end to end, and their masks, which all layers share.

    Not a dataclass or another container, so that FSDP hands it on as it is.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.query_R = torch.cat([torch.from_numpy(block.query_BQ).flatten() for block in plan.blocks]).to(device)
        self.key_S = torch.cat([torch.from_numpy(block.key_BK).flatten() for block in plan.blocks]).to(device)
        self.place_T = torch.from_numpy(plan.place_T).to(device)
        self.shapes = [(*block.query_BQ.shape, block.key_BK.shape[1]) for block in plan.blocks]
        self._above = [torch.from_numpy(block.above_B).to(device) for block in plan.blocks]
        self._masks: list[Tensor] = []

    def masks(self, repeats: int, dtype: torch.dtype) -> list[Tensor]:
        """[B, 1, repeats * Q, K] for each block: 0 where a query may attend, minus infinity elsewhere."""
        if not self._masks or self._masks[0].dtype != dtype:
            self._masks = [
                _mask(above_B, queries, keys, dtype).repeat(1, 1, repeats, 1)
                for above_B, (_, queries, keys) in zip(self._above, self.shapes, strict=True)
            ]
        return self._masks


def _mask(above_B: Tensor, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    i_Q, j_K = (torch.arange(size, device=above_B.device) for size in (queries, keys))
    hidden_BQK = j_K > (above_B[:, None] + i_Q)[:, :, None]
    return torch.zeros(hidden_BQK.shape, dtype=dtype, device=above_B.device).masked_fill_(hidden_BQK, float("-inf"))[:, None]


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
    """H query heads on G key-value heads; the output is [1, T, H, D].

    The H / G query heads of a key-value head are stacked along the query axis, so keys and values are not repeated.
    """
    _, heads, tokens, size = query_1HTD.shape
    groups = key_1GTD.shape[1]
    repeats = heads // groups
    query_TX = query_1HTD[0].transpose(0, 1).reshape(tokens, heads * size)
    both_TX = torch.cat([key_1GTD[0], value_1GTD[0]]).transpose(0, 1).reshape(tokens, 2 * groups * size)
    queries = query_TX.index_select(0, tree.query_R).split([b * q for b, q, _ in tree.shapes])
    boths = both_TX.index_select(0, tree.key_S).split([b * k for b, _, k in tree.shapes])
    rows = []
    for query, both, mask, (b, q, k) in zip(queries, boths, tree.masks(repeats, query_TX.dtype), tree.shapes, strict=True):
        query_BGRD = query.view(b, q, groups, repeats, size).permute(0, 2, 3, 1, 4).reshape(b, groups, repeats * q, size)
        key_BGKD, value_BGKD = both.view(b, k, 2, groups, size).permute(2, 0, 3, 1, 4)
        out_BGRD = scaled_dot_product_attention(query_BGRD, key_BGKD, value_BGKD, attn_mask=mask, scale=scaling)
        out_BQX = out_BGRD.view(b, groups, repeats, q, size).permute(0, 3, 1, 2, 4)
        rows.append(out_BQX.reshape(b * q, heads * size))
    return torch.cat(rows).index_select(0, tree.place_T).view(1, tokens, heads, size), None


AttentionInterface.register(NAME, tree_attention)
