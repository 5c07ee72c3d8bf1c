"""The message tree of a trajectory as rows with their depth."""

from dataclasses import dataclass

from nbrl.agent.trajectory import ROOT, Trajectory


@dataclass(frozen=True)
class Branch:
    """A node of the tree: `depth` counts the forks above it, `children` its direct successors."""

    number: int
    kind: str
    step: int
    tokens: int
    depth: int
    children: int


def branches(trajectory: Trajectory) -> list[Branch]:
    """All nodes, each after its parent; what follows a fork is one deeper than what stands before it."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(trajectory.nodes):
        children.setdefault(node.parent, []).append(number)
    found: list[Branch] = []
    left = [(number, 0) for number in reversed(children.get(ROOT, []))]
    while left:
        number, depth = left.pop()
        node, below = trajectory.nodes[number], children.get(number, [])
        found.append(Branch(number, node.kind, node.step, len(node.token_ids), depth, len(below)))
        left += [(child, depth + (len(below) > 1)) for child in reversed(below)]
    return found
