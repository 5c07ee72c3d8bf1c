"""The root paths of a packed tree as sequences of their own, for models whose attention has no form on trees."""

import numpy as np
import torch
from torch import Tensor

from nbrl.tasks.learner.arrays import Ints


class PathRows:
    """Every path from a root to a leaf of the tree, in B rows of L tokens, the length of the longest.

    `packed`: a row holds as many paths as fit into it, one after the other, each with positions from 0 on, by which a model of
    transformers knows that they do not see one another. Otherwise each has a row of its own. Rows are filled up at their ends,
    where a causal model looks at nothing that follows. Not a dataclass or another container, so that FSDP passes it on unchanged.
    """

    def __init__(self, end_T: Ints, positions_T: Ints, device: torch.device, packed: bool = False) -> None:
        leaf_P = np.flatnonzero(end_T == np.arange(1, len(end_T) + 1))
        paths = [np.flatnonzero(end_T[: leaf + 1] > leaf) for leaf in leaf_P]
        longest = max(map(len, paths))
        row_P, first_P, rows = _placed([len(path) for path in paths], longest if packed else 0)
        index_BL, position_BL = np.zeros((rows, longest), dtype=np.int64), np.zeros((rows, longest), dtype=np.int64)
        for row, first, path in zip(row_P, first_P, paths, strict=True):
            index_BL[row, first : first + len(path)] = path
            position_BL[row, first : first + len(path)] = np.arange(len(path))
        self.tokens = sum(map(len, paths))
        self.position_BL = torch.from_numpy(position_BL).to(device) if packed else None
        self._index_BL = torch.from_numpy(index_BL).to(device)
        # A token is in several paths; its own is that of the first leaf below it, at its depth.
        path_T = np.searchsorted(leaf_P, np.arange(len(end_T)))
        self._row_T = torch.from_numpy(row_P[path_T]).to(device)
        self._column_T = torch.from_numpy(first_P[path_T] + positions_T).to(device)

    def ids(self, input_ids_T: Tensor) -> Tensor:
        """Return the tokens of the paths, [B, L]."""
        return input_ids_T[self._index_BL]

    def rows(self, values_TX: Tensor) -> Tensor:
        """Return the values of the paths' tokens, one row after the other, [B * L, X]."""
        return values_TX[self._index_BL].flatten(0, 1)

    def pick(self, values_BLX: Tensor, index_N: Tensor) -> Tensor:
        """Return the values at N tokens of the tree, [N, X]."""
        return values_BLX[self._row_T[index_N], self._column_T[index_N]]


def _placed(lengths: list[int], room: int) -> tuple[Ints, Ints, int]:
    """Return the row and the first column of each path, and how many rows there are: first fit, the longest first, into rows of
    so much room; one row for each where there is none.
    """
    row_P, first_P, used = np.zeros(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64), list[int]()
    for path in sorted(range(len(lengths)), key=lambda path: -lengths[path]) if room else range(len(lengths)):
        row = next((row for row, taken in enumerate(used) if taken + lengths[path] <= room), len(used))
        if row == len(used):
            used.append(0)
        row_P[path], first_P[path] = row, used[row]
        used[row] += lengths[path]
    return row_P, first_P, len(used)
