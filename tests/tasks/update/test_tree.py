"""Packing of message trees, against the definition: every sampled token follows its root path."""

import numpy as np
import pytest
import update_lab
from hypothesis import given
from hypothesis import strategies as st

from agent.trajectory import ROOT, Node
from tasks.update.errors import UpdateError
from tasks.update.tree import PackedTree, chain, pack


def node(parent: int, ids: list[int], step: int = -1) -> Node:
    """A sampled node when it has a step, else a trunk node."""
    if step < 0:
        return Node(parent=parent, kind="observation", step=step, token_ids=ids)
    return Node(parent=parent, kind="sampled", step=step, token_ids=ids, logprobs=[-0.5] * len(ids))


@st.composite
def forests(draw: st.DrawFn) -> list[Node]:
    """Any trees, with empty nodes, several roots and sampled nodes anywhere but first on a path."""
    nodes = [node(ROOT, draw(st.lists(st.integers(0, 99), min_size=1, max_size=4)))]
    for index in range(1, draw(st.integers(2, 12))):
        parent = draw(st.integers(0, index - 1))
        ids = draw(st.lists(st.integers(0, 99), max_size=4))
        nodes.append(node(parent, ids, step=index if draw(st.booleans()) else -1))
    return nodes


def steps_of(nodes: list[Node]) -> dict[int, float]:
    return {each.step: float(each.step) for each in nodes if each.kind == "sampled"}


def root_path(tree: PackedTree, index: int) -> list[int]:
    """Indices that token `index` may attend to."""
    return [j for j in range(index + 1) if index < tree.end_T[j]]


def path_ids(nodes: list[Node], index: int) -> list[int]:
    ids: list[int] = []
    while index != ROOT:
        ids[:0] = nodes[index].token_ids
        index = nodes[index].parent
    return ids


@given(forests())
def test_every_target_sees_its_root_path_and_nothing_else(nodes: list[Node]) -> None:
    tree = pack(nodes, steps_of(nodes))
    seen = []
    for predictor, target, step in zip(tree.predictor_N, tree.target_N, tree.step_N, strict=True):
        path = root_path(tree, predictor)
        assert tree.positions_T[path].tolist() == list(range(len(path)))
        seen.append((int(step), [*tree.input_ids_T[path].tolist(), int(target)]))
    wanted = []
    for index, each in enumerate(nodes):
        if each.kind == "sampled":
            before = path_ids(nodes, each.parent)
            wanted += [(each.step, before + each.token_ids[: k + 1]) for k in range(len(each.token_ids))]
        assert index == 0 or each.parent < index
    assert sorted(seen) == sorted(wanted)


@given(forests())
def test_only_what_leads_to_a_sampled_token_is_kept(nodes: list[Node]) -> None:
    kept = set()
    for index, each in enumerate(nodes):
        if each.kind == "sampled" and each.token_ids:
            while index != ROOT:
                kept.add(index)
                index = nodes[index].parent
    assert pack(nodes, steps_of(nodes)).tokens == sum(len(nodes[index].token_ids) for index in kept)


def test_shape_of_two_steps() -> None:
    nodes = [
        node(ROOT, [1, 2]),
        node(0, [3]),  # tail of step 0
        node(1, [4, 5], step=0),
        node(0, [4, 5, 6]),  # the same action as history, and its observation
        node(3, [7], step=1),
        node(3, [8, 9]),  # nothing was sampled after it
    ]
    tree = pack(nodes, {0: 1.0, 1: -1.0})
    assert tree.input_ids_T.tolist() == [1, 2, 3, 4, 5, 4, 5, 6, 7]
    assert tree.positions_T.tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    assert tree.end_T.tolist() == [9, 9, 5, 5, 5, 9, 9, 9, 9]
    assert tree.predictor_N.tolist() == [2, 3, 7]
    assert tree.target_N.tolist() == [4, 5, 7]
    assert tree.advantage_N.tolist() == [1.0, 1.0, -1.0]
    assert tree.depth == 6


def test_a_real_trajectory_forwards_each_node_once() -> None:
    trajectory = update_lab.make_trajectory(np.random.default_rng(0), "t", steps=4)
    tree = pack(trajectory.nodes, dict.fromkeys(range(4), 1.0))
    last_two = trajectory.nodes[-2:]  # history after the last step
    assert tree.tokens == sum(len(each.token_ids) for each in trajectory.nodes) - sum(len(each.token_ids) for each in last_two)


def test_chain_predicts_every_token_but_the_first() -> None:
    tree = chain([5, 6, 7])
    assert tree.predictor_N.tolist() == [0, 1]
    assert tree.target_N.tolist() == [6, 7]
    assert root_path(tree, 2) == [0, 1, 2]


@pytest.mark.parametrize(
    ("nodes", "advantages", "message"),
    [
        ([node(ROOT, [1]), node(0, [2], step=0)], {}, "steps"),
        ([node(ROOT, [1]), node(0, [2], step=0)], {0: 1.0, 1: 1.0}, "steps"),
        ([node(ROOT, [1], step=0)], {0: 1.0}, "no token before"),
        ([node(1, [1]), node(ROOT, [2], step=0)], {0: 1.0}, "parent"),
        ([node(ROOT, [1]), Node(parent=0, kind="sampled", step=0, token_ids=[1, 2], logprobs=[-1.0])], {0: 1.0}, "log-probs"),
    ],
)
def test_refused(nodes: list[Node], advantages: dict[int, float], message: str) -> None:
    with pytest.raises(UpdateError, match=message):
        pack(nodes, advantages)
