"""The rectangles of a tree's attention, against the definition of the mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.trajectory import Node
from nbrl.tasks.learner.attention import segments
from nbrl.tasks.learner.attention.segments import SMALL, plan
from nbrl.tasks.learner.batch.tree import Forest, chain
from tests.tasks.learner import update_lab

sizes = st.sampled_from([1, 8, 40, SMALL])


def attended(end_T: np.ndarray) -> np.ndarray:
    """[T, T] of how often i is given j as a key."""
    made = plan(end_T)
    size = len(end_T)
    counts = np.zeros((size, size), dtype=int)
    for each in made.segments:
        own = slice(each.start, each.stop)
        counts[own, own] += np.tri(each.stop - each.start, dtype=int) if each.mask_QK is None else each.mask_QK
    for prefix in made.prefixes:
        counts[prefix.start : prefix.stop, prefix.first : prefix.last] += 1
    return counts


def wanted(end_T: np.ndarray) -> np.ndarray:
    i, j = np.indices((len(end_T), len(end_T)))
    return (j <= i) & (i < end_T[j])


@given(st.integers(0, 10**6), st.integers(1, 4), sizes)
def test_each_token_attends_to_its_root_path_once(seed: int, count: int, small: int) -> None:
    trajectories = update_lab.make_trajectories(seed, count)
    forest = Forest(update_lab.examples(trajectories))
    end_T = forest.pack().end_T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SMALL", small)
        np.testing.assert_array_equal(attended(end_T), wanted(end_T))


@given(st.lists(update_lab.forests(), min_size=1, max_size=3), sizes)
def test_each_token_of_any_tree_attends_to_its_root_path_once(trees: list[list[Node]], small: int) -> None:
    examples = [update_lab.example(str(number), nodes, update_lab.steps_of(nodes)) for number, nodes in enumerate(trees)]
    end_T = Forest(examples).pack().end_T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SMALL", small)
        np.testing.assert_array_equal(attended(end_T), wanted(end_T))


def test_each_token_is_in_one_segment() -> None:
    trajectories = update_lab.make_trajectories(2, 6)
    forest = Forest(update_lab.examples(trajectories))
    end_T = forest.pack().end_T
    covered = np.concatenate([np.arange(each.start, each.stop) for each in plan(end_T).segments])
    assert sorted(covered.tolist()) == list(range(len(end_T)))
    masked = [each for each in plan(end_T).segments if each.mask_QK is not None]
    assert all(each.stop - each.start <= SMALL for each in masked)


def test_a_path_is_one_causal_segment() -> None:
    made = plan(chain(list(range(3 * SMALL))).end_T)
    assert [(each.start, each.stop, each.mask_QK) for each in made.segments] == [(0, 3 * SMALL, None)]
    assert made.prefixes == []


def test_what_hangs_off_a_long_run_attends_to_the_run_without_a_mask() -> None:
    nodes = [
        update_lab.node(-1, [1] * 200),
        update_lab.node(0, [2] * 300, step=0),
        update_lab.node(0, [3] * 150, step=1),
        update_lab.node(0, [4] * 10, step=2),
        update_lab.node(0, [5] * 10, step=3),
    ]
    end_T = Forest([update_lab.example("t", nodes, update_lab.steps_of(nodes))]).pack().end_T
    made = plan(end_T)
    assert [(each.start, each.stop, each.first, each.last) for each in made.prefixes] == [(500, 670, 0, 200)]
    assert [(each.start, each.stop) for each in made.segments] == [(0, 500), (500, 650), (650, 670)]
