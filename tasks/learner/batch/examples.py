"""Reads the training data out of a table of trajectories, without a Python number for each token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.arrays import Floats, Ints

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class TreeNode:
    """A node of a trajectory's message tree, as training needs it: T token ids and, of a sampled node, T log-probs. `routes` are
    the experts that the engine chose for its tokens, as agent.routes has them; empty where they are unknown.
    """

    parent: int
    sampled: bool
    step: int
    ids_T: Ints
    logprobs_T: Floats
    routes: bytes = b""


@dataclass(frozen=True)
class Example:
    """The training data of one trajectory: its nodes and the advantage of every sampled step."""

    trajectory: str
    nodes: Sequence[TreeNode]
    advantages: Mapping[int, float]


def examples_of(trajectories: pa.Table, advantages: Mapping[str, Mapping[int, float]]) -> list[Example]:
    """Return an example for each trajectory of the table, in its order; `advantages` are by trajectory and step.

    Raises KeyError if a trajectory has no advantages, and UpdateError if a value of a node is missing.
    """
    nodes = cast(pa.ListArray, trajectories["nodes"].combine_chunks())
    tree = cast(pa.StructArray, nodes.values)
    parent, kind, step, token_ids, logprobs = (tree.field(name) for name in ("parent", "kind", "step", "token_ids", "logprobs"))
    if any(
        column.null_count for column in (nodes, tree, parent, kind, step, token_ids, token_ids.values, logprobs, logprobs.values)
    ):
        raise UpdateError("the order's tables hold nodes with missing values")
    sampled = pc.equal(kind, "sampled").to_pylist()
    ids, logprobs_of = _slices(token_ids, np.int64), _slices(logprobs, np.float64)
    bounds = nodes.offsets.to_pylist()
    routes = _routes(trajectories, bounds, list(map(len, ids)))
    each = [TreeNode(*node) for node in zip(parent.to_pylist(), sampled, step.to_pylist(), ids, logprobs_of, routes, strict=True)]
    own = [each[start:end] for start, end in pairwise(bounds)]
    names = trajectories["id"].to_pylist()
    return [Example(name, its, advantages[name]) for name, its in zip(names, own, strict=True)]


def _routes(trajectories: pa.Table, bounds: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Return the routes of all nodes, which have so many tokens, and whose trajectories begin and end at `bounds`.

    Raises UpdateError unless all tokens with a route have equally many experts.
    """
    known = trajectories["routes"].to_pylist() if "routes" in trajectories.column_names else [None] * len(trajectories)
    routes: list[bytes] = []
    for (start, end), each in zip(pairwise(bounds), known, strict=True):
        if each and len(each) != end - start:
            raise UpdateError(f"the order's tables hold {len(each)} routes for {end - start} nodes")
        routes += each or [b""] * (end - start)
    widths = {len(of_node) / (2 * tokens) if tokens else 0.0 for of_node, tokens in zip(routes, lengths, strict=True) if of_node}
    if len(widths) > 1 or not all(width >= 1 and width.is_integer() for width in widths):
        raise UpdateError("the order's tables hold routes that are not those of their nodes' tokens")
    return routes


def _slices(lists: pa.ListArray, kind: type[Number]) -> list[npt.NDArray[Number]]:
    """Return the numbers of each list, as views of one array of that kind."""
    values = lists.values.to_numpy().astype(kind)
    offsets = lists.offsets.to_pylist()
    return [values[start:end] for start, end in pairwise(offsets)]
