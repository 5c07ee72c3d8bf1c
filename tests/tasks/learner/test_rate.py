"""Learning rates by hand."""

import math

import pytest

from nbrl.tasks.learner.step.optimizer import learning_rate


def test_warm_up_then_constant() -> None:
    assert [learning_rate(step, 0.1, 2) for step in range(4)] == pytest.approx([0.05, 0.1, 0.1, 0.1])


def test_linear_ends_at_the_floor_and_stays() -> None:
    rates = [learning_rate(step, 1.0, 2, "linear", 6, 0.2) for step in range(9)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_cosine_is_half_way_at_the_middle() -> None:
    rates = [learning_rate(step, 1.0, 0, "cosine", 4) for step in range(6)]
    assert rates == pytest.approx([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0, 0.0], abs=1e-12)
