"""Moves a packed tree to a device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nbrl.tasks.learner.attention.paths import PathRows
from nbrl.tasks.learner.attention.tree_attention import TreeMask, tree_mask
from nbrl.tasks.learner.batch.tree import PackedTree, chain


@dataclass(frozen=True)
class MicroBatch:
    """A packed tree on a device: T tokens to forward and N targets."""

    input_ids_T: Tensor
    positions_T: Tensor
    tree: TreeMask | PathRows
    predictor_N: Tensor
    target_N: Tensor
    index_N: Tensor
    engine_logprob_N: Tensor
    advantage_N: Tensor
    route_TX: Tensor | None = None

    @property
    def forwarded(self) -> int:
        """Return the tokens that a model forwards, padding left out."""
        return self.tree.tokens if isinstance(self.tree, PathRows) else len(self.input_ids_T)


def to_device(tree: PackedTree, device: torch.device, paths: bool = False, packed: bool = False) -> MicroBatch:
    """Move a tree to a device, to be forwarded at once or as its `paths`, `packed` or not.

    An empty tree becomes one token without a target, so that an idle rank stays in step.
    """
    if not len(tree.input_ids_T):
        tree = chain([0])
    return MicroBatch(
        input_ids_T=torch.from_numpy(tree.input_ids_T).to(device),
        positions_T=torch.from_numpy(tree.positions_T).to(device),
        tree=PathRows(tree.end_T, tree.positions_T, device, packed) if paths else tree_mask(tree.end_T, device),
        predictor_N=torch.from_numpy(tree.predictor_N).to(device),
        target_N=torch.from_numpy(tree.target_N).to(device),
        index_N=torch.from_numpy(tree.index_N).to(device),
        engine_logprob_N=torch.from_numpy(tree.engine_logprob_N).to(device),
        advantage_N=torch.from_numpy(tree.advantage_N).to(device),
        route_TX=None if tree.route_TX is None else torch.from_numpy(tree.route_TX).to(device),
    )
