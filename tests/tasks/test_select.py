import pyarrow as pa

from nbrl.tasks.nodes.select import by_group
from nbrl.tasks.selection.judge import judge, judge_table, no_signal
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


def test_why_nothing_was_kept_counts_the_groups_of_all_rounds() -> None:
    rounds = [
        {"select/kept": 0.0, "select/dropped/all_wrong": 3.0},
        {"select/dropped/all_wrong": 2.0, "select/dropped/failed": 1.0},
    ]
    assert no_signal(rounds) == "of 6 groups 5 are all wrong, 0 all right, 1 failed"
