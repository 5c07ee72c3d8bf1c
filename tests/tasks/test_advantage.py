import numpy as np
import pytest

from nbrl.tasks.advantage.estimate import (
    discounted_returns,
    dr_grpo,
    estimate,
    gae,
    grpo,
    max_rl,
    reinforce_pp,
    reinforce_pp_baseline,
    rloo,
    token_gae,
)
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.nodes.update import advantage_table, nothing_to_gain, reward_table

ROWS = [
    {"trajectory": "x", "group": "a", "step_rewards": [0.1, 0.9]},
    {"trajectory": "y", "group": "a", "step_rewards": [0.1]},
    {"trajectory": "z", "group": "b", "step_rewards": [0.4]},
    {"trajectory": "w", "group": "b", "step_rewards": [0.2, 0.1]},
]

EARLY = {"trajectory": "e", "group": "a", "step_rewards": []}


def test_returns_are_discounted_from_the_end() -> None:
    assert discounted_returns([1.0, 0.0, 2.0], 0.5) == pytest.approx([1.5, 1.0, 2.0])


def test_reinforce_pp_whitens_over_all_steps_of_the_batch() -> None:
    first, second = reinforce_pp([[0.0, 1.0], [0.5]], gamma=0.5)
    steps = np.array([0.5, 1.0, 0.5])
    expected = (steps - steps.mean()) / steps.std(ddof=1)
    assert [*first, *second] == pytest.approx(list(expected), abs=1e-6)


def test_a_batch_that_is_all_the_same_has_no_advantage() -> None:
    (only,) = reinforce_pp([[1.0]], 1.0)
    assert only == pytest.approx([0.0])


@pytest.mark.parametrize("estimator", ["reinforce_pp", "reinforce_pp_baseline", "grpo", "dr_grpo", "rloo", "max_rl"])
@pytest.mark.parametrize("rewards", [[80000.7], [1e6 / 3, -1e6 / 3, 0.1], [1e-9 / 3], [0.1] * 10])
def test_equal_rewards_of_any_size_have_advantages_of_exactly_0(estimator: str, rewards: list[float]) -> None:
    step_rewards = [[sum(rewards)], [sum(reversed(rewards))], [sum(sorted(rewards))]] * 4
    if estimator != "reinforce_pp":
        step_rewards[0] = rewards  # the same in several steps
    settings = AdvantageSettings.model_validate({"estimator": estimator})
    assert all((array == 0).all() for array in estimate(step_rewards, ["a"] * 12, settings))


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_rewards_that_differ_a_little_keep_their_signal(size: float) -> None:
    first, second = grpo([[size], [size * (1 + 1e-6)]], ["a", "a"])
    assert (first[0], second[0]) == pytest.approx((-np.sqrt(0.5), np.sqrt(0.5)), rel=0.1)


def test_grpo_compares_within_the_group() -> None:
    advantages = grpo([[1.0], [0.0], [0.0, 5.0]], ["a", "a", "b"])
    assert advantages[0] == pytest.approx([np.sqrt(0.5)], abs=1e-6)
    assert advantages[1] == pytest.approx([-np.sqrt(0.5)], abs=1e-6)
    assert advantages[2] == pytest.approx([0.0, 0.0])


def test_dr_grpo_does_not_divide_by_the_spread() -> None:
    advantages = dr_grpo([[1.0], [0.0], [0.0, 5.0], [1.0]], ["a", "a", "b", "b"])
    assert [list(each) for each in advantages] == [[0.5], [-0.5], [2.0, 2.0], [-2.0]]


def test_max_rl_divides_by_the_share_that_is_right() -> None:
    advantages = max_rl([[1.0], [0.0], [0.0, 0.0], [0.0], [1.0], [1.0], [0.0]], ["hard"] * 4 + ["sure"] * 2 + ["wrong"])
    assert [list(each) for each in advantages] == [[3.0], [-1.0], [-1.0, -1.0], [-1.0], [0.0], [0.0], [0.0]]


@pytest.mark.parametrize(("right", "of"), [(1, 4), (2, 4), (3, 8)])
def test_max_rl_weighs_a_right_trajectory_by_one_over_those_that_are_right(right: int, of: int) -> None:
    """Its gradient estimate is the mean of the right trajectories' scores, less the mean of all (the paper's estimator)."""
    rewards = [1.0] * right + [0.0] * (of - right)
    scores = np.random.default_rng(0).normal(size=of)
    estimate = np.mean(
        [advantage[0] * score for advantage, score in zip(max_rl([[r] for r in rewards], ["a"] * of), scores, strict=True)]
    )
    assert estimate == pytest.approx(scores[:right].mean() - scores.mean())


def test_reinforce_pp_baseline_takes_the_groups_mean_and_the_batchs_spread() -> None:
    advantages = reinforce_pp_baseline([[1.0], [0.0], [0.0, 5.0], [1.0]], ["a", "a", "b", "b"])
    steps = np.array([0.5, -0.5, 2.0, 2.0, -2.0])  # the groups' means are 0.5 and 3
    spread = np.sqrt(((steps - 0.4) ** 2).sum() / 4)
    assert np.concatenate(advantages) == pytest.approx((steps - 0.4) / spread, abs=1e-6)


def test_rloo_takes_the_mean_of_the_others() -> None:
    advantages = rloo([[3.0], [0.0], [0.0]], ["a"] * 3)
    assert [float(a[0]) for a in advantages] == pytest.approx([3.0, -1.5, -1.5])


def test_gae_by_hand() -> None:
    # deltas: 1 + 0.5 * 4 - 2 = 1, then 3 - 4 = -1; gamma * lambda = 0.25
    assert gae([1.0, 3.0], [2.0, 4.0], gamma=0.5, lam=0.5) == pytest.approx([0.75, -1.0])
    assert gae([1.0, 3.0], [2.0, 4.0], gamma=1.0, lam=1.0) == pytest.approx([2.0, -1.0])  # the returns less the values
    assert gae([1.0, 3.0], [2.0, 4.0], gamma=1.0, lam=0.0) == pytest.approx([3.0, -1.0])  # one step ahead


def test_token_gae_by_hand() -> None:
    # deltas: 0.5 * 2 - 1 = 0, then 5 - 2 = 3; gamma * lambda = 0.25
    assert token_gae(5.0, [1.0, 2.0], gamma=0.5, lam=0.5) == pytest.approx([0.75, 3.0])


def test_undiscounted_token_gae_gives_the_first_token_the_steps_advantage() -> None:
    assert token_gae(5.0, [1.0, 7.0, -2.0], gamma=1.0, lam=1.0)[0] == pytest.approx(5.0 - 1.0)


@pytest.mark.parametrize("estimator", ["reinforce_pp", "reinforce_pp_baseline", "grpo", "dr_grpo", "rloo"])
def test_every_estimator_gives_each_step_a_row(estimator: str) -> None:
    rows = advantage_table(ROWS, AdvantageSettings(estimator=estimator)).to_pylist()
    expected = [("x", 0), ("x", 1), ("y", 0), ("z", 0), ("w", 0), ("w", 1)]
    assert [(row["trajectory"], row["step"]) for row in rows] == expected
    assert np.isfinite([row["advantage"] for row in rows]).all()


def test_every_estimator_gives_advantages_of_its_own() -> None:
    found = set()
    for estimator in ("reinforce_pp", "reinforce_pp_baseline", "grpo", "dr_grpo", "rloo"):
        found.add(tuple(advantage_table(ROWS, AdvantageSettings(estimator=estimator))["advantage"].to_pylist()))
    assert len(found) == 5


def test_gamma_acts_on_step_returns() -> None:
    tables = [advantage_table(ROWS, AdvantageSettings(gamma=gamma)) for gamma in (0.95, 0.5)]
    assert not tables[0].equals(tables[1])


def test_the_learner_gets_the_rewards_as_they_are() -> None:
    rows = reward_table(ROWS).to_pylist()
    assert rows[:3] == [
        {"trajectory": "x", "step": 0, "reward": 0.1},
        {"trajectory": "x", "step": 1, "reward": 0.9},
        {"trajectory": "y", "step": 0, "reward": 0.1},
    ]


def test_no_step_makes_an_empty_table() -> None:
    assert len(advantage_table([], AdvantageSettings())) == 0
    assert len(advantage_table([EARLY], AdvantageSettings(estimator="grpo"))) == 0


@pytest.mark.parametrize(
    ("estimator", "advantages"), [("dr_grpo", [2 / 3, -1 / 3]), ("rloo", [1.0, -0.5]), ("grpo", [1.1547, -0.57735])]
)
def test_a_trajectory_that_ended_before_its_first_step_counts_in_its_group(estimator: str, advantages: list[float]) -> None:
    rows = [{"trajectory": "x", "group": "a", "step_rewards": [1.0]}, {"trajectory": "y", "group": "a", "step_rewards": [0.0]}]
    found = advantage_table([*rows, EARLY], AdvantageSettings.model_validate({"estimator": estimator})).to_pylist()
    assert [row["trajectory"] for row in found] == ["x", "y"]
    assert [row["advantage"] for row in found] == pytest.approx(advantages, abs=1e-4)
    assert reward_table([*rows, EARLY]).to_pylist()[2] == {"trajectory": "e", "step": None, "reward": None}


def test_advantages_of_equal_rewards_are_nothing_to_learn_from() -> None:
    metrics = {"advantage/steps": 4.0, "advantage/max_abs": 1e-9}  # what rounding leaves when equal floats are whitened
    assert "earned the same" in nothing_to_gain(metrics)
    assert nothing_to_gain(metrics | {"advantage/max_abs": 0.5}) == ""
    assert nothing_to_gain({"advantage/steps": 4.0}) == ""  # the learner makes them
    assert nothing_to_gain({"advantage/steps": 0.0}) == "no trajectory took a step"
