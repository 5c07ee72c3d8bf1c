"""What a token weighs, and which trajectories a step learns from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.trajectory import ROOT
from nbrl.tasks.learner.batch.batch import minibatches
from nbrl.tasks.learner.batch.targets import Targets, token_weights
from nbrl.tasks.learner.batch.tree import Forest
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import node


def two_trajectories() -> Forest:
    """Actions of 2 and 1 tokens, and one of 3."""
    first = [node(ROOT, [1]), node(0, [2, 3], step=0), node(0, [4], step=1)]
    other = [node(ROOT, [1]), node(0, [5, 6, 7], step=0)]
    return Forest([update_lab.example("a", first, {0: 1.0, 1: 1.0}), update_lab.example("b", other, {0: 1.0})])


@pytest.mark.parametrize(
    ("aggregation", "shares"),
    [
        ("token_mean", [1 / 6] * 6),
        ("action_mean", [1 / 6, 1 / 6, 1 / 3, 1 / 9, 1 / 9, 1 / 9]),
        ("trajectory_mean", [1 / 6] * 6),
        ("fixed_length", [1 / 20] * 6),
    ],
)
def test_weights_by_hand(aggregation: str, shares: list[float]) -> None:
    targets = Targets.of(two_trajectories())
    weights = token_weights(targets, [0, 1], aggregation, 10 if aggregation == "fixed_length" else None)
    assert (weights / 6).tolist() == pytest.approx(shares)


def test_a_trajectorys_tokens_share_its_part() -> None:
    forest = Forest(
        [
            update_lab.example("a", [node(ROOT, [1]), node(0, [2], step=0)], {0: 1.0}),
            update_lab.example("b", [node(ROOT, [1]), node(0, [5, 6, 7], step=0)], {0: 1.0}),
        ]
    )
    weights = token_weights(Targets.of(forest), [0, 1], "trajectory_mean", None)
    assert (weights / 4).tolist() == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_only_the_examples_of_the_minibatch_weigh() -> None:
    targets = Targets.of(two_trajectories())
    assert token_weights(targets, [1], "token_mean", None).tolist() == [0, 0, 0, 1, 1, 1]
    assert (token_weights(targets, [0], "action_mean", None) / 3).tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 2, 0, 0, 0])


def test_targets_know_their_place_in_any_packing() -> None:
    forest = two_trajectories()
    targets = Targets.of(forest)
    assert targets.action_N.tolist() == [0, 0, 1, 2, 2, 2]
    assert targets.example_N.tolist() == [0, 0, 0, 1, 1, 1]
    assert targets.first_A.tolist() == [0, 2, 3]
    every = forest.pack([2, 0, 1])
    assert every.index_N.tolist() == [3, 4, 5, 0, 1, 2]
    assert every.target_N.tolist() == [5, 6, 7, 2, 3, 4]


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 3), st.integers(1, 15))
def test_every_trajectory_is_learned_from_once_an_epoch(seed: int, count: int, epochs: int, shares: int) -> None:
    trajectories = update_lab.make_trajectories(seed, count)
    forest = Forest(update_lab.examples(trajectories))
    shuffled = minibatches([str(example // 3) for example in range(count)], Targets.of(forest), epochs, shares, seed)
    each = min(shares, count)
    assert len(shuffled) == epochs * each
    for epoch in range(epochs):
        mine = shuffled[epoch * each : (epoch + 1) * each]
        assert sorted(np.concatenate(mine).tolist()) == list(range(count))
        assert max(map(len, mine)) - min(map(len, mine)) <= 1


def test_groups_stay_together_and_are_shuffled_anew() -> None:
    trajectories = update_lab.make_trajectories(0, 12)
    targets = Targets.of(Forest(update_lab.examples(trajectories)))
    groups = [str(example // 3) for example in range(12)]
    shuffled = minibatches(groups, targets, 3, 4, seed=1)
    assert all(len({groups[example] for example in share}) == 1 for share in shuffled)
    assert len({tuple(map(tuple, shuffled[epoch * 4 : epoch * 4 + 4])) for epoch in range(3)}) > 1
    assert shuffled == minibatches(groups, targets, 3, 4, seed=1)
