import numpy as np
import pytest

from tasks.advantage.grpo import grpo
from tasks.advantage.node import estimate
from tasks.advantage.reinforce_pp import discounted_returns, reinforce_pp
from tasks.advantage.rloo import rloo


def test_returns_are_discounted_from_the_end() -> None:
    assert discounted_returns([1.0, 0.0, 2.0], 0.5) == pytest.approx([1.5, 1.0, 2.0])


def test_reinforce_pp_whitens_over_all_steps_of_the_batch() -> None:
    first, second = reinforce_pp([[0.0, 1.0], [0.5]], ["a", "b"], gamma=0.5)
    steps = np.array([0.5, 1.0, 0.5])
    expected = (steps - steps.mean()) / steps.std(ddof=1)
    assert [*first, *second] == pytest.approx(list(expected), abs=1e-6)


def test_a_batch_that_is_all_the_same_has_no_advantage() -> None:
    (only,) = reinforce_pp([[1.0]], ["a"], 1.0)
    assert only == pytest.approx([0.0])


def test_grpo_compares_within_the_group() -> None:
    advantages = grpo([[1.0], [0.0], [0.0, 5.0]], ["a", "a", "b"], 1.0)
    assert advantages[0] == pytest.approx([np.sqrt(0.5)], abs=1e-6)
    assert advantages[1] == pytest.approx([-np.sqrt(0.5)], abs=1e-6)
    assert advantages[2] == pytest.approx([0.0, 0.0])


def test_rloo_takes_the_mean_of_the_others() -> None:
    advantages = rloo([[3.0], [0.0], [0.0]], ["a"] * 3, 1.0)
    assert [float(a[0]) for a in advantages] == pytest.approx([3.0, -1.5, -1.5])


@pytest.mark.parametrize("estimator", ["reinforce_pp", "grpo", "rloo"])
def test_every_estimator_gives_each_step_a_row(estimator: str) -> None:
    rewards = [
        {"trajectory": "x", "group": "a", "step_rewards": [0.1, 0.9]},
        {"trajectory": "y", "group": "a", "step_rewards": [0.1]},
    ]
    rows = estimate(rewards, estimator, 0.95).to_pylist()
    assert [(row["trajectory"], row["step"]) for row in rows] == [("x", 0), ("x", 1), ("y", 0)]
    assert np.isfinite([row["advantage"] for row in rows]).all()
