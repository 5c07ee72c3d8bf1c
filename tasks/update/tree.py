"""A trajectory's message tree, laid out flat so that each of its tokens is forwarded once.

Tokens stand in depth-first order. Token i may attend to token j iff j is on i's root path or i itself, which in this order is
`j <= i < end[j]`, where `end[j]` is one past the last token that hangs below j.
"""

# ruff: noqa: N815 - suffixes of tensor names are shapes

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.trajectory import ROOT, Node
from tasks.update.errors import UpdateError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PackedTree:
    """T tokens of a tree in depth-first order, and N targets: its sampled tokens.

    A position is a token's depth along its root path, so each branch counts on from where it leaves the trunk. A target's
    predictor is the index of the token before it on its root path; the first tokens of several branches may share one.
    """

    input_ids_T: Ints
    positions_T: Ints
    end_T: Ints
    predictor_N: Ints
    target_N: Ints
    engine_logprob_N: Floats
    advantage_N: Floats
    step_N: Ints

    @property
    def tokens(self) -> int:
        return len(self.input_ids_T)

    @property
    def depth(self) -> int:
        """Tokens on the longest root path."""
        return int(self.positions_T.max()) + 1 if self.tokens else 0


def pack(nodes: Sequence[Node], advantages: Mapping[int, float]) -> PackedTree:
    """Pack the nodes that lead to a sampled token; the rest carry no gradient. `advantages` is by step.

    Raises UpdateError when a sampled step has no advantage or an advantage no sampled step, when log-probs do not match the
    ids, or when a sampled token has nothing before it to be predicted from.
    """
    _check(nodes, advantages)
    order, children = _depth_first(nodes)
    start, depth, last = (np.zeros(len(nodes), dtype=np.int64) for _ in range(3))
    total = 0
    for index in order:
        node, parent = nodes[index], nodes[index].parent
        start[index] = total
        depth[index] = 0 if parent == ROOT else depth[parent] + len(nodes[parent].token_ids)
        total += len(node.token_ids)
        last[index] = total - 1 if node.token_ids else (-1 if parent == ROOT else last[parent])
    stop = np.zeros(len(nodes), dtype=np.int64)
    for index in reversed(order):
        stop[index] = max([start[index] + len(nodes[index].token_ids), *(stop[child] for child in children[index])])

    ids, positions, end = (np.zeros(total, dtype=np.int64) for _ in range(3))
    predictors: list[Ints] = []
    sampled = [index for index in order if nodes[index].kind == "sampled" and nodes[index].token_ids]
    for index in order:
        count = len(nodes[index].token_ids)
        here = slice(start[index], start[index] + count)
        ids[here] = nodes[index].token_ids
        positions[here] = depth[index] + np.arange(count)
        end[here] = stop[index]
    for index in sampled:
        before = -1 if nodes[index].parent == ROOT else last[nodes[index].parent]
        if before < 0:
            raise UpdateError(f"sampled node {index} has no token before it")
        inside = np.arange(start[index], start[index] + len(nodes[index].token_ids) - 1)
        predictors.append(np.concatenate([[before], inside]))
    counts = [len(nodes[index].token_ids) for index in sampled]
    steps = [nodes[index].step for index in sampled]
    return PackedTree(
        input_ids_T=ids,
        positions_T=positions,
        end_T=end,
        predictor_N=np.concatenate([np.zeros(0, dtype=np.int64), *predictors]),
        target_N=np.array([token for index in sampled for token in nodes[index].token_ids], dtype=np.int64),
        engine_logprob_N=np.array([value for index in sampled for value in nodes[index].logprobs], dtype=np.float64),
        advantage_N=np.repeat(np.array([advantages[step] for step in steps], dtype=np.float64), counts),
        step_N=np.repeat(np.array(steps, dtype=np.int64), counts),
    )


def chain(ids: Sequence[int]) -> PackedTree:
    """One plain sequence as a tree; every token but the first is a target, with no advantage."""
    count = len(ids)
    tokens = np.array(ids, dtype=np.int64)
    return PackedTree(
        input_ids_T=tokens,
        positions_T=np.arange(count),
        end_T=np.full(count, count),
        predictor_N=np.arange(count - 1),
        target_N=tokens[1:],
        engine_logprob_N=np.zeros(count - 1),
        advantage_N=np.zeros(count - 1),
        step_N=np.zeros(count - 1, dtype=np.int64),
    )


def _check(nodes: Sequence[Node], advantages: Mapping[int, float]) -> None:
    sampled = set()
    for index, node in enumerate(nodes):
        if not ROOT <= node.parent < index:
            raise UpdateError(f"node {index} stands before its parent {node.parent}")
        if node.kind != "sampled":
            continue
        sampled.add(node.step)
        if len(node.logprobs) != len(node.token_ids):
            raise UpdateError(f"sampled node {index} has {len(node.token_ids)} ids but {len(node.logprobs)} log-probs")
    if sampled != set(advantages):
        raise UpdateError(f"steps {sorted(sampled)} were sampled, but there are advantages for steps {sorted(advantages)}")


def _depth_first(nodes: Sequence[Node]) -> tuple[list[int], list[list[int]]]:
    """Indices of the nodes with a sampled token at or below them, parents first, and the children of every node among these."""
    kept = [False] * len(nodes)
    children: list[list[int]] = [[] for _ in nodes]
    roots: list[int] = []
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        kept[index] = kept[index] or (node.kind == "sampled" and bool(node.token_ids))
        if kept[index] and node.parent == ROOT:
            roots.append(index)
        elif kept[index]:
            kept[node.parent] = True
            children[node.parent].append(index)
    order: list[int] = []
    stack = roots  # roots and children were met last to first, so the first is on top
    while stack:
        index = stack.pop()
        order.append(index)
        stack.extend(children[index])
    return order, children
