"""The message tree of one episode, held small while the episode waits for its policy."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from nbrl.agent.trajectory import Node, NodeKind


@dataclass(frozen=True, slots=True)
class _Run:
    parent: int
    kind: NodeKind
    step: int
    ids: "array[int]"
    logprobs: "array[float]"
    weights_version: str


_NONE: "array[float]" = array("d")


class Tree:
    """Nodes in order of creation, so that a parent comes before its children."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(
        self,
        parent: int,
        kind: NodeKind,
        step: int,
        ids: "array[int]",
        logprobs: Iterable[float] = (),
        weights_version: str = "",
    ) -> int:
        """Add a node and return its number. `ids` is kept, not copied."""
        self._runs.append(_Run(parent, kind, step, ids, array("d", logprobs) or _NONE, weights_version))
        return len(self._runs) - 1

    def nodes(self) -> list[Node]:
        return [
            Node(
                parent=run.parent,
                kind=run.kind,
                step=run.step,
                token_ids=run.ids.tolist(),
                logprobs=run.logprobs.tolist(),
                weights_version=run.weights_version,
            )
            for run in self._runs
        ]
