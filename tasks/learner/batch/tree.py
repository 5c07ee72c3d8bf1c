"""Merges the message trees of trajectories into one forest, laid out flat so that a token with one root path is forwarded once.

Tokens are in depth-first order. Token i may attend to token j iff j is on i's root path or i itself, which in this order is
`j <= i < end[j]`, where `end[j]` is one past the last descendant of j.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nbrl.agent.trajectory import ROOT
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.arrays import Floats, Ints
from nbrl.tasks.learner.batch.examples import Example, Number

UNROUTED = -1


@dataclass(frozen=True)
class PackedTree:
    """T tokens in depth-first order, and N targets: the sampled tokens. `index_N` is their numbers in the whole forest.

    A position is a token's depth along its root path, so each branch continues counting where it leaves the trunk. A target's
    predictor is the index of the token before it on its root path; the first tokens of several branches may share one. A route
    has the experts that the engine chose, layer after layer, and UNROUTED where it said none.
    """

    input_ids_T: Ints
    positions_T: Ints
    end_T: Ints
    predictor_N: Ints
    target_N: Ints
    index_N: Ints
    engine_logprob_N: Floats
    advantage_N: Floats
    route_TX: Ints | None = None


@dataclass(frozen=True)
class SampledAction:
    """All tokens sampled in one step of an example: the merged node that holds their ids, and the number of the first of them
    among the targets of the whole forest, T tokens. Examples that sampled the same tokens have separate actions at one place.
    """

    example: int
    step: int
    place: int
    first: int
    logprobs_T: Floats
    advantage: float


class Forest:
    """The nodes of all examples that lead to a sampled token, each distinct (root path, ids, routes) once; parents before
    children.

    Nodes that lead to no sampled token carry no gradient and are left out, and so are nodes without ids.
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        """Merge the examples. Raises UpdateError if an example's advantages are not those of its sampled steps, if log-probs do
        not match ids or are not finite, or if a sampled token has no token before it from which it is predicted.
        """
        self.ids: list[Ints] = []
        self.routes: list[bytes] = []
        self.parent: list[int] = []
        self.depth: list[int] = []  # tokens on the root path, including the node's own
        self.actions: list[SampledAction] = []  # in the order that numbers the targets
        self.targets = 0
        merged: dict[tuple[int, bytes, bytes], int] = {}  # by parent, ids and routes
        for number, example in enumerate(examples):
            try:
                self._add(number, example, merged)
            except UpdateError as error:
                raise UpdateError(f"trajectory {example.trajectory}: {error}") from error

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids in self.ids)

    @property
    def engine_logprob_N(self) -> Floats:
        """Return the engine's log-probs of all targets."""
        return _joined(np.float64, [action.logprobs_T for action in self.actions])

    def of(self, examples: Sequence[int]) -> list[int]:
        """Return the numbers of the examples' actions."""
        chosen = set(examples)
        return [number for number, action in enumerate(self.actions) if action.example in chosen]

    def path(self, action: int) -> list[int]:
        """Return the nodes from an action up to the root."""
        nodes, node = [], self.actions[action].place
        while node != ROOT:
            nodes.append(node)
            node = self.parent[node]
        return nodes

    def path_ids(self, action: int) -> list[int]:
        """Return the ids from the root to the end of an action, which are its last."""
        return [token for node in reversed(self.path(action)) for token in self.ids[node].tolist()]

    def depth_first(self, actions: Iterable[int]) -> tuple[list[int], dict[int, tuple[int, int]]]:
        """Return the nodes that the actions need in depth-first order, and each one's first token and the end of its tree.

        The child with the longest path below it comes first, so that long paths are contiguous.
        """
        needed: set[int] = set()
        for action in actions:
            node = self.actions[action].place
            while node != ROOT and node not in needed:
                needed.add(node)
                node = self.parent[node]
        nodes = sorted(needed)
        reach: dict[int, int] = {}
        children: dict[int, list[int]] = {node: [] for node in (ROOT, *nodes)}
        for node in reversed(nodes):
            reach[node] = len(self.ids[node]) + max((reach[child] for child in children[node]), default=0)
            children[self.parent[node]].append(node)
        order: list[int] = []
        stack = sorted(children[ROOT], key=lambda node: (reach[node], -node))
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(sorted(children[node], key=lambda child: (reach[child], -child)))
        span: dict[int, tuple[int, int]] = {}
        total = 0
        for node in order:
            span[node] = (total, total + len(self.ids[node]))
            total = span[node][1]
        for node in reversed(order):
            span[node] = (span[node][0], max([span[node][1], *(span[child][1] for child in children[node])]))
        return order, span

    def pack(self, actions: Sequence[int] | None = None) -> PackedTree:
        """Lay out the tree of some of the actions, by default of all. Its targets are those of the actions, in their order."""
        numbers = range(len(self.actions)) if actions is None else actions
        order, span = self.depth_first(numbers)
        size = sum(len(self.ids[node]) for node in order)
        ids, positions, end = (np.zeros(size, dtype=np.int64) for _ in range(3))
        for node in order:
            start, stop = span[node]
            own = slice(start, start + len(self.ids[node]))
            ids[own] = self.ids[node]
            positions[own] = np.arange(self.depth[node] - len(self.ids[node]), self.depth[node])
            end[own] = stop
        chosen = [self.actions[action] for action in numbers]
        counts = [len(action.logprobs_T) for action in chosen]
        return PackedTree(
            input_ids_T=ids,
            positions_T=positions,
            end_T=end,
            predictor_N=_joined(np.int64, [self._predictors(action.place, span) for action in chosen]),
            target_N=_joined(np.int64, [self.ids[action.place] for action in chosen]),
            index_N=_joined(np.int64, [action.first + np.arange(len(action.logprobs_T)) for action in chosen]),
            engine_logprob_N=_joined(np.float64, [action.logprobs_T for action in chosen]),
            advantage_N=np.repeat(np.array([action.advantage for action in chosen], dtype=np.float64), counts),
            route_TX=self._routes(order),
        )

    def _routes(self, nodes: Sequence[int]) -> Ints | None:
        """Return the routes [T, X] of the tokens of some nodes; None where the engine has said none of the forest."""
        width = next((len(routes) // len(ids) for ids, routes in zip(self.ids, self.routes, strict=True) if routes), 0)
        if not width:
            return None
        unknown = np.uint16(0xFFFF).tobytes() * (width // 2)
        known = b"".join(self.routes[node] or unknown * len(self.ids[node]) for node in nodes)
        route_TX = np.frombuffer(known, dtype=np.uint16).reshape(-1, width // 2).astype(np.int64)
        return np.where(route_TX == 0xFFFF, UNROUTED, route_TX)

    def _add(self, number: int, example: Example, merged: dict[tuple[int, bytes, bytes], int]) -> None:
        nodes = example.nodes
        _check(example)
        kept = [node.sampled and len(node.ids_T) > 0 for node in nodes]
        for index in reversed(range(len(nodes))):
            if kept[index] and nodes[index].parent != ROOT:
                kept[nodes[index].parent] = True
        place: dict[int, int] = {ROOT: ROOT}
        for index in (index for index, keep in enumerate(kept) if keep):
            node = nodes[index]
            above = place[node.parent]
            place[index] = self._merge(above, node.ids_T, node.routes, merged) if len(node.ids_T) else above
            if node.sampled and len(node.ids_T):
                if above == ROOT:
                    raise UpdateError(f"sampled node {index} has no token before it")
                advantage = example.advantages[node.step]
                self.actions.append(SampledAction(number, node.step, place[index], self.targets, node.logprobs_T, advantage))
                self.targets += len(node.logprobs_T)

    def _merge(self, parent: int, ids: Ints, routes: bytes, merged: dict[tuple[int, bytes, bytes], int]) -> int:
        node = merged.setdefault((parent, ids.tobytes(), routes), len(self.ids))
        if node == len(self.ids):
            self.ids.append(ids)
            self.routes.append(routes)
            self.parent.append(parent)
            self.depth.append(len(ids) + (0 if parent == ROOT else self.depth[parent]))
        return node

    def _predictors(self, node: int, span: Mapping[int, tuple[int, int]]) -> Ints:
        """Return for each token of a merged node the index of the token before it on its root path."""
        start, parent = span[node][0], self.parent[node]
        before = span[parent][0] + len(self.ids[parent]) - 1
        return np.concatenate([[before], np.arange(start, start + len(self.ids[node]) - 1)])


def chain(ids: Sequence[int]) -> PackedTree:
    """Return one plain sequence as a tree; every token except the first is a target, without advantage."""
    count = len(ids)
    tokens = np.array(ids, dtype=np.int64)
    return PackedTree(
        input_ids_T=tokens,
        positions_T=np.arange(count),
        end_T=np.full(count, count),
        predictor_N=np.arange(count - 1),
        target_N=tokens[1:],
        index_N=np.arange(count - 1),
        engine_logprob_N=np.zeros(count - 1),
        advantage_N=np.zeros(count - 1),
    )


def _joined(kind: type[Number], parts: Sequence[npt.NDArray[Number]]) -> npt.NDArray[Number]:
    """Return one array of all parts; an empty one where there are none."""
    return np.concatenate([np.zeros(0, dtype=kind), *parts])


def _check(example: Example) -> None:
    sampled = set()
    for index, node in enumerate(example.nodes):
        if not ROOT <= node.parent < index:
            raise UpdateError(f"node {index} comes before its parent {node.parent}")
        if not node.sampled:
            continue
        sampled.add(node.step)
        if len(node.logprobs_T) != len(node.ids_T):
            raise UpdateError(f"sampled node {index} has {len(node.ids_T)} ids but {len(node.logprobs_T)} log-probs")
        if not np.isfinite(node.logprobs_T).all():
            raise UpdateError(f"sampled node {index} has a log-prob that is no finite number; look at the engine that sampled it")
    if sampled != set(example.advantages):
        raise UpdateError(
            f"steps {sorted(sampled)} were sampled, but there are advantages for steps {sorted(example.advantages)}"
        )
