"""Attention of a packed tree on a GPU: FlexAttention with a block mask."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from nbrl.tasks.learner.arrays import Bools, Ints

BLOCK = 128  # tokens
LEAST_HEAD = 16  # numbers a head has in the compiled kernel; zeros fill smaller ones


@cache
def compiled() -> Callable[..., Any]:
    """Return FlexAttention for any number of tokens, compiled once with and once without gradients.

    Where it is not compiled it holds all scores at once.
    """
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


class BlockAttention:
    """The attention of one tree. Not a dataclass or another container, so that FSDP passes it on unchanged."""

    def __init__(self, end_T: Ints, device: torch.device) -> None:
        # To whole blocks and two at least: torch would compile once more for a single block.
        self._padding = max(-len(end_T) % BLOCK, 2 * BLOCK - len(end_T))
        # padding attends to itself, and nothing attends to it
        end_P = np.concatenate([end_T, np.arange(len(end_T), len(end_T) + self._padding) + 1])
        self.mask = block_mask(end_P, device)
        self._kernel: Callable[..., Any] = flex_attention
        if device.type == "cuda":
            self._kernel = compiled()

    def attend(self, query_1HTD: Tensor, key_1GTD: Tensor, value_1GTD: Tensor, scaling: float) -> Tensor:
        """Return the outputs [1, T, H, D] of H query heads on G key-value heads."""
        tokens, size = query_1HTD.shape[2:]
        fill = (0, max(0, LEAST_HEAD - size), 0, self._padding)
        wide = (pad(each, fill) for each in (query_1HTD, key_1GTD, value_1GTD))
        query, key, value = (each.contiguous() for each in wide)  # whether padded or not, or it would be compiled for both
        out_1HPD = self._kernel(query, key, value, block_mask=self.mask, scale=scaling, enable_gqa=True)
        out_1THD: Tensor = out_1HPD[:, :, :tokens, :size].transpose(1, 2).contiguous()
        return out_1THD


def block_mask(end_P: Ints, device: torch.device) -> BlockMask:
    """Return the mask of P tokens in N blocks. It is made from each block's least and greatest end, never from a mask of P * P.

    A block I of queries after a block J of keys needs J if the first query of I lies below any key of J, and needs no mask if
    the last query lies below them all. On the diagonal there is always a mask.
    """
    blocks = len(end_P) // BLOCK
    end_NB = end_P.reshape(blocks, BLOCK)
    first_N = np.arange(blocks) * BLOCK
    after_NN = np.tri(blocks, k=-1, dtype=bool)
    whole_NN = after_NN & (first_N[:, None] + BLOCK - 1 < end_NB.min(axis=1))
    some_NN = np.eye(blocks, dtype=bool) | after_NN & (first_N[:, None] < end_NB.max(axis=1)) & ~whole_NN
    end = torch.from_numpy(end_P).to(device)

    def visible(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i < end[j])

    count, index = _listed(some_NN, device)
    whole_count, whole_index = _listed(whole_NN, device)
    return BlockMask.from_kv_blocks(count, index, whole_count, whole_index, BLOCK, visible)


def _listed(wanted_NN: Bools, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return how many blocks of keys each block of queries wants, [1, 1, N], and their numbers first in each row of
    [1, 1, N, N].
    """
    count_N = wanted_NN.sum(axis=1, dtype=np.int32)
    index_NN = np.argsort(~wanted_NN, axis=1, kind="stable").astype(np.int32)
    count, index = torch.from_numpy(count_N)[None, None], torch.from_numpy(index_NN)[None, None]
    return count.to(device), index.to(device)
