"""The ways in which a model can be forwarded over a packed tree."""

from dataclasses import dataclass
from typing import Literal

from nbrl.tasks.learner.attention.tree_attention import NAME as TREE


@dataclass(frozen=True)
class Forward:
    """How a model is forwarded: whole trees or their paths, by which attention, with logits of its own head or of one matrix.

    `packed`: paths that fit share a row.
    """

    kind: Literal["tree", "paths"] = "tree"
    implementation: str = TREE
    own_head: bool = False
    packed: bool = False

    @property
    def paths(self) -> bool:
        return self.kind == "paths"


FORWARDS = (
    Forward(),
    Forward(own_head=True),
    *(
        Forward("paths", implementation, own_head, packed)
        for packed in (True, False)
        for implementation in ("sdpa", "eager")
        for own_head in (False, True)
    ),
)
"""In the order in which they are tried: the cheapest first."""
