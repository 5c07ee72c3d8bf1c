"""The root paths of a packed tree as sequences of their own, for models whose attention has no form on trees."""

import numpy as np
import torch
from torch import Tensor

from nbrl.tasks.learner.arrays import Ints


class PathRows:
    """B root paths, of which the longest has L tokens: every path from a root to a leaf of the tree.

    Shorter paths are filled up at their ends, where a causal model looks at nothing that follows. Not a dataclass or another
    container, so that FSDP passes it on unchanged.
    """

    def __init__(self, end_T: Ints, positions_T: Ints, device: torch.device) -> None:
        leaf_B = np.flatnonzero(end_T == np.arange(1, len(end_T) + 1))
        paths = [np.flatnonzero(end_T[: leaf + 1] > leaf) for leaf in leaf_B]
        index_BL = np.zeros((len(paths), max(map(len, paths))), dtype=np.int64)
        for row, path in enumerate(paths):
            index_BL[row, : len(path)] = path
        self.tokens = sum(map(len, paths))
        self._index_BL = torch.from_numpy(index_BL).to(device)
        # A token is in several rows; its own is that of the first leaf below it, at its depth.
        self._row_T = torch.from_numpy(np.searchsorted(leaf_B, np.arange(len(end_T)))).to(device)
        self._column_T = torch.from_numpy(positions_T).to(device)

    def ids(self, input_ids_T: Tensor) -> Tensor:
        """Return the tokens of the paths, [B, L]."""
        return input_ids_T[self._index_BL]

    def rows(self, values_TX: Tensor) -> Tensor:
        """Return the values of the paths' tokens, one row after the other, [B * L, X]."""
        return values_TX[self._index_BL].flatten(0, 1)

    def pick(self, values_BLX: Tensor, index_N: Tensor) -> Tensor:
        """Return the values at N tokens of the tree, [N, X]."""
        return values_BLX[self._row_T[index_N], self._column_T[index_N]]
