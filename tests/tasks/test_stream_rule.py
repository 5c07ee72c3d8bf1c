"""Which groups of a stream are in flight, and which fill a batch."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.rollout.stream import GroupInFlight, StreamRule, age_shares, consecutive

FINISH = StreamRule(batch=2, in_flight=3, admit="finish", lag=2)
QUOTA, ORDER = FINISH._replace(admit="quota"), FINISH._replace(admit="order")
FIRST = FINISH.first()


def test_a_run_begins_with_so_many_groups_of_the_first_weights() -> None:
    assert [GroupInFlight(0, 0), GroupInFlight(1, 0), GroupInFlight(2, 0)] == FIRST


def test_a_batch_is_what_finished_first_whatever_its_turn() -> None:
    assert FINISH.admitted(FIRST, {2: 0}, 0, 0) is None
    assert FINISH.admitted(FIRST, {2: 0, 1: 0}, 0, 0) == [1, 2]
    assert FINISH.admitted(FIRST, {2: 0, 1: 0, 0: 0}, 0, 0) == [1, 2]


def test_a_batch_in_order_waits_for_the_next_prompts() -> None:
    assert ORDER.admitted(FIRST, {2: 0, 1: 0}, 0, 0) is None
    assert ORDER.admitted(FIRST, {2: 0, 1: 0, 0: 0}, 0, 0) == [0, 1]


def test_a_batch_by_quota_waits_for_what_would_become_too_old() -> None:
    groups = [GroupInFlight(2, 0), GroupInFlight(3, 0), GroupInFlight(4, 0)]  # the first batch had 0 and 1
    assert QUOTA.due(groups, 0) == []
    assert QUOTA.due(groups, 1) == [2]
    assert QUOTA.admitted(groups, {3: 0, 4: 0}, 1, 1) is None
    assert QUOTA.admitted(groups, {3: 0, 4: 0, 2: 0}, 1, 1) == [2, 3]
    assert QUOTA.admitted(groups, {4: 0, 3: 0, 2: 0}, 1, 1) == [2, 4]


def test_groups_that_are_too_old_are_in_the_batch_beside_those_that_fill_it() -> None:
    groups = [GroupInFlight(0, 0), GroupInFlight(7, 2), GroupInFlight(8, 2)]
    assert FINISH.admitted(groups, {0: 0, 7: 2}, 3, 3) is None
    assert FINISH.admitted(groups, {0: 0, 7: 2, 8: 3}, 3, 3) == [0, 7, 8]
    assert FINISH.admitted(groups, {0: 1, 7: 2, 8: 3}, 3, 3) == [0, 7]  # it was begun by other weights than sampled it


def test_what_will_be_too_old_for_the_next_batch_holds_no_place() -> None:
    groups = [GroupInFlight(0, 0), GroupInFlight(7, 2), GroupInFlight(8, 2)]
    assert FINISH.refilled(groups, [7, 8], 9, 1) == [GroupInFlight(0, 0), GroupInFlight(9, 1), GroupInFlight(10, 1)]
    assert FINISH.refilled(groups, [7, 8], 9, 2) == [GroupInFlight(0, 0), *(GroupInFlight(9 + i, 2) for i in range(3))]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 100), st.sampled_from(["order", "quota", "finish"]), st.data())
def test_every_group_is_admitted_once_within_the_lag_whatever_finishes_when(
    batch: int, lag: int, seed: int, admit: str, data: st.DataObject
) -> None:
    rule = StreamRule(batch, data.draw(st.integers(batch, lag * batch)), admit, lag)
    draw, groups, cursor = random.Random(seed), rule.first(), rule.in_flight
    learned, finished = list[int](), dict[int, int]()
    for turn in range(12):
        while (admitted := rule.admitted(groups, finished, turn, turn)) is None:
            group = draw.choice([each for each in groups if each.position not in finished])
            finished[group.position] = draw.randint(group.updates, turn)
        old = [position for position in admitted if turn - finished[position] > lag]
        assert len(admitted) - len(old) == batch
        assert not old or admit == "finish"
        learned += admitted
        finished = {position: oldest for position, oldest in finished.items() if position not in admitted}
        before = len(groups) - len(admitted)
        groups = rule.refilled(groups, admitted, cursor, turn)
        cursor += len(groups) - before
        if admit != "finish":
            assert len(groups) == rule.in_flight
    flying = [group.position for group in groups]
    assert sorted([*learned, *flying]) == list(range(cursor))


def test_shares_of_ages_are_of_tokens() -> None:
    assert age_shares({}) == {}
    assert age_shares({0: 3, 2: 1}) == {
        "pipeline/staleness": pytest.approx(0.5),
        "pipeline/staleness/0": 0.75,
        "pipeline/staleness/2": 0.25,
    }


@given(st.lists(st.integers(0, 20)))
def test_runs_of_positions_are_the_positions(positions: list[int]) -> None:
    runs = consecutive(positions)
    assert [first + number for first, count in runs for number in range(count)] == positions
    assert all(one[0] + one[1] != other[0] for one, other in itertools.pairwise(runs))
