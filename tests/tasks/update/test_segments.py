"""The blocks of a tree's attention, against the definition of the mask."""

# ruff: noqa: N803, N806 - suffixes of array names are shapes

import numpy as np
import update_lab
from hypothesis import given
from hypothesis import strategies as st

from agent.trajectory import Node
from tasks.update.segments import LONGEST, plan
from tasks.update.tree import Example, Forest, chain


def attended(end_T: np.ndarray) -> np.ndarray:
    """[T, T] of how often i is given j as a key, from the blocks."""
    made = plan(end_T)
    size = len(end_T)
    rows = []
    for block in made.blocks:
        for query_Q, key_K, above in zip(block.query_BQ, block.key_BK, block.above_B, strict=True):
            for i in range(len(query_Q)):
                rows.append(np.bincount(key_K[: above + i + 1], minlength=size))
    return np.stack(rows)[made.place_T]


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_each_token_attends_to_its_root_path_once(seed: int, count: int) -> None:
    trajectories = update_lab.make_trajectories(seed, count)
    forest = Forest([Example(t.id, t.nodes, {node.step: 1.0 for node in t.sampled()}) for t in trajectories])
    end_T = forest.pack(range(count)).end_T
    i, j = np.indices((len(end_T), len(end_T)))
    np.testing.assert_array_equal(attended(end_T), (j <= i) & (i < end_T[j]))


@given(st.lists(update_lab.forests(), min_size=1, max_size=3))
def test_each_token_of_any_tree_attends_to_its_root_path_once(trees: list[list[Node]]) -> None:
    examples = [Example(str(number), nodes, update_lab.steps_of(nodes)) for number, nodes in enumerate(trees)]
    end_T = Forest(examples).pack(range(len(trees))).end_T
    i, j = np.indices((len(end_T), len(end_T)))
    if len(end_T):
        np.testing.assert_array_equal(attended(end_T), (j <= i) & (i < end_T[j]))


def test_long_runs_are_cut() -> None:
    end_T = chain(list(range(3 * LONGEST + 1))).end_T
    np.testing.assert_array_equal(attended(end_T), np.tri(len(end_T)))
    assert max(block.query_BQ.shape[1] for block in plan(end_T).blocks) <= LONGEST
