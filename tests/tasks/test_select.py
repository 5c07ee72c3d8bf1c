from typing import Any

import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from nbrl.tasks.selection.judge import RETIRED_SCHEMA, by_group, judge, judge_table, no_signal, resampled, retired
from nbrl.tasks.selection.settings import SelectSettings

ALWAYS, NEVER = SelectSettings(drop_rate=1.0), SelectSettings(drop_rate=0.0)
OK = ["answered"] * 2


def test_a_group_with_signal_is_always_kept() -> None:
    assert judge("g", [0.0, 1.0], OK, ALWAYS, 0) == {"group": "g", "kept": True, "reason": "signal"}


def test_a_group_without_signal_goes_with_the_drop_rate() -> None:
    assert judge("g", [1.0, 1.0], OK, ALWAYS, 0) == {"group": "g", "kept": False, "reason": "all_right"}
    assert judge("g", [0.0, 0.0], OK, ALWAYS, 0) == {"group": "g", "kept": False, "reason": "all_wrong"}
    assert judge("g", [0.0, 0.0], OK, NEVER, 0)["kept"]
    kept = sum(judge(str(i), [0.0, 0.0], OK, SelectSettings(drop_rate=0.5), 0)["kept"] for i in range(1000))
    assert 440 < kept < 560


def test_a_group_with_a_failed_trajectory_is_set_aside_whole() -> None:
    assert judge("g", [0.0, 1.0], ["answered", "failed"], NEVER, 0) == {"group": "g", "kept": False, "reason": "failed"}


def test_groups_are_gathered_in_order_of_appearance() -> None:
    rewards = pa.table({"group": ["b", "a", "b"], "success": [1.0, 0.0, 0.0], "status": ["answered", "failed", "step_limit"]})
    rewards = rewards.append_column("unscored", pa.array([""] * 3))
    rows = judge_table(by_group(rewards), ALWAYS, 0).to_pylist()
    assert [(row["group"], row["reason"]) for row in rows] == [("b", "signal"), ("a", "failed")]


def trajectories(right: list[float], wrong: int) -> list[dict[str, Any]]:
    """Of one group: right ones with these shares of failed cells, and so many wrong ones."""
    rows = [{"trajectory": f"r{n}", "success": 1.0, "execution": 1 - share, "format": 1.0} for n, share in enumerate(right)]
    return rows + [{"trajectory": f"w{n}", "success": 0.0, "execution": 1.0, "format": 0.5} for n in range(wrong)]


def test_the_cleanest_successes_and_any_failures_stay_in_their_shares() -> None:
    rows = trajectories([0.5, 0.0, 0.3, 0.1], wrong=4)
    chosen = [resampled(rows, 4, seed) for seed in range(40)]
    assert {tuple(name for name in each if name[0] == "r") for each in chosen} == {("r1", "r3")}
    assert len({tuple(name for name in each if name[0] == "w") for each in chosen}) == 6
    assert resampled(rows, 4, 3) == resampled(rows[::-1], 4, 3)[::-1]


def test_a_malformed_step_is_a_flaw_too() -> None:
    rows = trajectories([0.0, 0.2, 0.2], wrong=3)
    rows[0]["format"] = 0.5
    assert [name for name in resampled(rows, 3, 0) if name[0] == "r"] == ["r1", "r2"]


@given(st.lists(st.floats(0, 1), max_size=16), st.integers(0, 16), st.integers(2, 15), st.integers(0, 9))
def test_so_many_stay_as_were_asked_for_and_of_each_kind_one(flawed: list[float], wrong: int, count: int, seed: int) -> None:
    rows = trajectories(flawed, wrong)
    assume(len(rows) > count)
    chosen = resampled(rows, count, seed)
    assert len(set(chosen)) == count
    kinds = {name[0] for name in chosen}
    assert kinds == {row["trajectory"][0] for row in rows}
    of_right = sum(name[0] == "r" for name in chosen)
    share = count * len(flawed) / len(rows)
    assert abs(of_right - share) <= 0.5 or share < of_right == 1 or share > of_right == count - 1


def test_why_nothing_was_kept_counts_the_groups_of_all_rounds() -> None:
    rounds = [
        {"select/kept": 0.0, "select/dropped/all_wrong": 3.0},
        {"select/dropped/all_wrong": 2.0, "select/dropped/failed": 1.0},
    ]
    assert no_signal(rounds) == "of 6 groups 5 are all wrong, 0 all right, 1 failed"


def rewards_of(groups: dict[str, list[float]], status: str = "answered") -> pa.Table:
    rows = [{"group": name, "success": each} for name, values in groups.items() for each in values]
    return pa.Table.from_pylist([row | {"status": status, "unscored": ""} for row in rows])


def test_a_question_is_retired_once_its_group_was_right_often_enough() -> None:
    prompts = pa.table({"id": ["q", "r", "s", "s"], "group": ["q.2", "r.1", "s", "s.1"]})
    groups = {"q.2": [1.0, 1.0, 0.0], "r.1": [1.0, 0.0, 0.0], "s": [1.0, 1.0, 1.0], "s.1": [1.0, 1.0, 1.0]}
    before = pa.Table.from_pylist([{"id": "a", "success": 0.9, "iteration": 1}], schema=RETIRED_SCHEMA)
    table = retired(before, prompts, rewards_of(groups), 0.66, 4)
    assert [(row["id"], row["iteration"]) for row in table.to_pylist()] == [("a", 1), ("q", 4), ("s", 4)]
    assert table["success"].to_pylist() == [0.9, 2 / 3, 1.0]
    assert retired(table, prompts, rewards_of(groups), 0.66, 5).equals(table)
    assert len(retired(RETIRED_SCHEMA.empty_table(), prompts, rewards_of(groups, "failed"), 0.66, 4)) == 0
