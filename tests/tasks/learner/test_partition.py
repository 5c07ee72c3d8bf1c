"""Which actions go to which rank and micro-batch, against all the ways there are."""

from itertools import chain, combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.agent.trajectory import Node
from nbrl.tasks.learner.batch.partition import Cost, Partition, partition
from nbrl.tasks.learner.batch.tree import Forest
from tests.tasks.learner import update_lab

COST = Cost(token=50, pair=1, target=7)
trees = st.lists(update_lab.forests(), min_size=1, max_size=3)


def forest_of(several: list[list[Node]]) -> Forest:
    return Forest([update_lab.example(str(number), nodes, update_lab.steps_of(nodes)) for number, nodes in enumerate(several)])


def shaped(seed: int, count: int) -> Forest:
    """Of trajectories with a prompt in common."""
    trajectories = update_lab.make_trajectories(seed, count)
    for each in trajectories:
        each.nodes[:2] = trajectories[0].nodes[:2]
    return Forest(update_lab.examples(trajectories))


def measured(forest: Forest, actions: list[int]) -> int:
    """The cost of a micro-batch, from its packed tree."""
    tree = forest.pack(actions)
    pairs = int((tree.positions_T + 1).sum())
    return COST.token * len(tree.input_ids_T) + COST.pair * pairs + COST.target * len(tree.target_N)


def split(forest: Forest, ranks: int, budget: int) -> Partition:
    return partition(forest, range(len(forest.actions)), ranks, budget, COST)


def in_a_row(forest: Forest) -> list[list[int]]:
    """The actions at each place, in depth-first order."""
    order, _ = forest.depth_first(range(len(forest.actions)))
    held = [[number for number, action in enumerate(forest.actions) if action.place == node] for node in order]
    return [each for each in held if each]


def partitions(row: list[list[int]], pieces: int) -> list[list[list[int]]]:
    """Every way to cut the row into that many pieces."""
    ways = []
    for cuts in combinations(range(1, len(row)), pieces - 1):
        bounds = [0, *cuts, len(row)]
        ways.append([sorted(chain(*row[a:b])) for a, b in pairwise(bounds)])
    return ways


@given(trees, st.integers(1, 4), st.integers(1, 60))
def test_every_action_is_dealt_once_and_whole(several: list[list[Node]], ranks: int, budget: int) -> None:
    forest = forest_of(several)
    hands = split(forest, ranks, budget).actions_by_rank
    assert len(hands) == ranks
    assert len({len(hand) for hand in hands}) == 1
    micro_batches = [micro for hand in hands for micro in hand]
    assert sorted(action for micro in micro_batches for action in micro) == list(range(len(forest.actions)))
    targets = np.concatenate([np.zeros(0, dtype=int), *(forest.pack(micro).index_N for micro in micro_batches)])
    assert sorted(targets.tolist()) == list(range(forest.targets))
    for micro in micro_batches:
        alone = len({forest.actions[action].place for action in micro}) == 1
        assert alone or len(forest.pack(micro).input_ids_T) <= budget


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(20, 150))
def test_cuts_repeat_least(seed: int, count: int, budget: int) -> None:
    forest = shaped(seed, count)
    (mine,) = split(forest, 1, budget).actions_by_rank
    row = in_a_row(forest)
    allowed = [
        (sum(measured(forest, piece) for piece in way), len(way))
        for pieces in range(1, len(row) + 1)
        for way in partitions(row, pieces)
        if all(len(forest.pack(piece).input_ids_T) <= budget or piece in map(sorted, row) for piece in way)
    ]
    assert (sum(measured(forest, micro) for micro in mine), len(mine)) == min(allowed)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3))
def test_shares_are_as_even_as_a_row_can_be_cut(seed: int, count: int, ranks: int) -> None:
    forest = shaped(seed, count)
    partitioned = split(forest, ranks, 10**9)
    costs = [sum(measured(forest, micro) for micro in hand if micro) for hand in partitioned.actions_by_rank]
    row = in_a_row(forest)
    ways = [way for pieces in range(1, min(ranks, len(row)) + 1) for way in partitions(row, pieces)]
    assert max(costs) == min(max(measured(forest, piece) for piece in way) for way in ways)
    assert partitioned.imbalance == max(costs) * ranks / sum(costs)


def test_a_trajectory_longer_than_the_budget_is_cut_between_its_actions() -> None:
    trajectory = update_lab.make_trajectory(np.random.default_rng(0), "t", steps=4)
    forest = Forest([update_lab.example("t", trajectory.nodes, dict.fromkeys(range(4), 1.0))])
    (mine,) = split(forest, 1, forest.tokens - 1).actions_by_rank
    assert len(mine) > 1
    assert sorted(chain(*mine)) == [0, 1, 2, 3]


def test_a_group_is_not_cut_where_another_cut_is_free() -> None:
    group = [
        [update_lab.node(-1, [name] * 20), update_lab.node(0, [name] * 4, step=0), update_lab.node(0, [0] * 4, step=1)]
        for name in (1, 2)
    ]
    (mine,) = split(forest_of(group), 1, 50).actions_by_rank
    assert sorted(map(sorted, mine)) == [[0, 1], [2, 3]]


def test_the_same_action_of_two_trajectories_stays_together() -> None:
    nodes = [update_lab.node(-1, [1, 2]), update_lab.node(0, [4, 5], step=0)]
    assert split(forest_of([nodes, nodes]), 2, 1).actions_by_rank == [[[0, 1]], [[]]]
