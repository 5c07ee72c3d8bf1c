"""Joins the trajectories of children to that of the agent that called them."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from nbrl.agent.trajectory import ROOT, ChildRecord, Node, Trajectory

ChildKind = Literal["llm", "agent"]


class ChildRun(NamedTuple):
    """A child that the cell of step `caller` called, and its trajectory so far."""

    caller: int
    kind: ChildKind
    made: Trajectory


def with_children(own: Trajectory, runs: Iterable[ChildRun], trained: bool) -> Trajectory:
    """Return a trajectory with its children, in the order in which they began; their nodes are further roots of its tree.

    The steps of a child, and after them those of its own children, get the next numbers. Those not `trained` are marked so.
    """
    nodes, children, steps = list(own.nodes), list[ChildRecord](), len(own.steps)
    for caller, kind, made in runs:
        first = len(nodes)
        nodes += [_moved(node, first, steps, trained) for node in made.nodes]
        answer = made.answer
        children.append(
            ChildRecord(caller=caller, kind=kind, task=made.question, status=made.status, answer=answer, steps=made.steps)
        )
        children += [each.model_copy(update={"caller": each.caller + steps}) for each in made.children]
        steps += len(made.all_steps)
    return own.model_copy(update={"nodes": nodes, "children": children}) if children else own


def _moved(node: Node, first: int, steps: int, trained: bool) -> Node:
    parent = ROOT if node.parent == ROOT else node.parent + first
    kind = "untrained" if node.kind == "sampled" and not trained else node.kind
    return node.model_copy(update={"parent": parent, "step": node.step + steps, "kind": kind})
