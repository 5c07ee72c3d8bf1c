"""Packing of message trees, against the definition: every sampled token follows its root path."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.trajectory import ROOT, Node
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.tree import Forest, PackedTree, chain
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import forests, node, steps_of


def pack(nodes: list[Node], advantages: dict[int, float]) -> PackedTree:
    return Forest([update_lab.example("t", nodes, advantages)]).pack()


def root_path(tree: PackedTree, index: int) -> list[int]:
    """Indices that token `index` may attend to."""
    return [j for j in range(index + 1) if index < tree.end_T[j]]


def path_ids(nodes: list[Node], index: int) -> list[int]:
    ids: list[int] = []
    while index != ROOT:
        ids[:0] = nodes[index].token_ids
        index = nodes[index].parent
    return ids


def wanted_paths(nodes: list[Node]) -> list[tuple[int, list[int]]]:
    """For every sampled token its step, and the ids from the root to it."""
    wanted = []
    for each in nodes:
        if each.kind == "sampled":
            before = path_ids(nodes, each.parent)
            wanted += [(each.step, before + each.token_ids[: k + 1]) for k in range(len(each.token_ids))]
    return wanted


def found_paths(forest: Forest) -> list[tuple[int, list[int]]]:
    """The same, as the packed tree has it."""
    tree, targets, found = forest.pack(), Targets.of(forest), []
    step_N = targets.step_A[targets.action_N[tree.index_N]]
    for predictor, target, step in zip(tree.predictor_N, tree.target_N, step_N, strict=True):
        path = root_path(tree, predictor)
        assert tree.positions_T[path].tolist() == list(range(len(path)))
        found.append((int(step), [*tree.input_ids_T[path].tolist(), int(target)]))
    return found


@given(st.lists(forests(), min_size=1, max_size=3))
def test_every_target_sees_its_root_path_and_nothing_else(trees: list[list[Node]]) -> None:
    forest = Forest([update_lab.example(str(number), nodes, steps_of(nodes)) for number, nodes in enumerate(trees)])
    found = found_paths(forest)
    assert found == [path for nodes in trees for path in wanted_paths(nodes)]
    assert forest.targets == len(found)


@given(st.lists(forests(), min_size=1, max_size=3))
def test_what_is_forwarded_leads_to_a_sampled_token_and_is_forwarded_once(trees: list[list[Node]]) -> None:
    forest = Forest([update_lab.example(str(number), nodes, steps_of(nodes)) for number, nodes in enumerate(trees)])
    runs = set()
    for nodes in trees:
        for index, each in enumerate(nodes):
            here = index if each.kind == "sampled" and each.token_ids else ROOT
            while here != ROOT:
                runs.add((tuple(path_ids(nodes, nodes[here].parent)), tuple(nodes[here].token_ids)))
                here = nodes[here].parent
    tree = forest.pack()
    assert len(tree.input_ids_T) == forest.tokens
    # two runs of different ids may begin at one place, but none of the same ids
    assert forest.tokens == sum(len(ids) for _, ids in runs)


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
    assert tree.input_ids_T.tolist() == [1, 2, 4, 5, 6, 7, 3, 4, 5]  # the longer path first
    assert tree.positions_T.tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 4]
    assert tree.end_T.tolist() == [9, 9, 6, 6, 6, 6, 9, 9, 9]
    assert tree.predictor_N.tolist() == [6, 7, 4]
    assert tree.target_N.tolist() == [4, 5, 7]
    assert tree.advantage_N.tolist() == [1.0, 1.0, -1.0]


def test_a_group_shares_its_prompt_and_even_an_equal_action() -> None:
    first = [node(ROOT, [1, 2]), node(0, [3]), node(1, [4, 5], step=0)]
    other = [node(ROOT, [1, 2]), node(0, [3]), node(1, [6], step=0)]
    forest = Forest(
        [
            update_lab.example("a", first, {0: 1.0}),
            update_lab.example("b", other, {0: 2.0}),
            update_lab.example("c", first, {0: -3.0}),
        ]
    )
    tree = forest.pack()
    assert tree.input_ids_T.tolist() == [1, 2, 3, 4, 5, 6]
    assert tree.target_N.tolist() == [4, 5, 6, 4, 5]
    assert tree.predictor_N.tolist() == [2, 3, 2, 2, 3]
    assert tree.advantage_N.tolist() == [1.0, 1.0, 2.0, -3.0, -3.0]
    assert forest.pack(forest.of([1])).input_ids_T.tolist() == [1, 2, 3, 6]


def test_a_real_trajectory_forwards_each_node_once() -> None:
    trajectory = update_lab.make_trajectory(np.random.default_rng(0), "t", steps=4)
    tree = pack(trajectory.nodes, dict.fromkeys(range(4), 1.0))
    history_after_the_last_step = trajectory.nodes[-2:]
    left_out = sum(len(each.token_ids) for each in history_after_the_last_step)
    assert len(tree.input_ids_T) == sum(len(each.token_ids) for each in trajectory.nodes) - left_out


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
