from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.evaluation.statistics import difference, estimate, pass_at


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_with_a_right_one(samples: int, data: st.DataObject) -> None:
    right, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    marks = [1] * right + [0] * (samples - right)
    chosen = [any(choice) for choice in combinations(marks, k)]
    assert pass_at(samples, right, k) == pytest.approx(sum(chosen) / len(chosen))


@pytest.mark.parametrize("k", [0, 4])
def test_pass_at_more_samples_than_there_are_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at(3, 1, k)


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=30))
def test_an_interval_holds_its_mean_and_stays_between_the_scores(scores: list[float]) -> None:
    found = estimate(scores)
    assert found.value == pytest.approx(np.mean(scores))
    assert min(scores) - 1e-9 <= found.low <= found.high <= max(scores) + 1e-9


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),  # calculated apart
    [(4, 5, 0.3755, 0.9638), (5, 5, 0.5655, 1.0), (0, 10, 0.0, 0.2775), (15, 20, 0.5313, 0.8881)],
)
def test_few_questions_that_are_right_or_wrong_have_wilsons_interval(right: int, count: int, low: float, high: float) -> None:
    found = estimate([1.0] * right + [0.0] * (count - right))
    assert (found.value, found.questions) == (right / count, count)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_an_interval_is_that_of_the_normal_approximation_for_many_questions() -> None:
    scores = [float(number % 4 == 0) for number in range(2000)]
    found, half = estimate(scores), 1.96 * (0.25 * 0.75 / 2000) ** 0.5
    assert found.low == pytest.approx(0.25 - half, abs=0.003)
    assert found.high == pytest.approx(0.25 + half, abs=0.003)


@pytest.mark.more
def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    draws = np.random.default_rng(0)
    found = [estimate(list(draws.random(100) < 0.4)) for _ in range(200)]
    assert 0.88 <= np.mean([each.low <= 0.4 <= each.high for each in found]) <= 0.99


def test_paired_scores_tell_apart_what_their_own_intervals_do_not() -> None:
    draws = np.random.default_rng(1)
    first = draws.random(200)
    second = first + 0.02 + 0.01 * draws.standard_normal(200)
    assert estimate(list(first)).high > estimate(list(second)).low
    found = difference(list(first), list(second))
    assert found.low > 0
    assert found.p < 0.01


def test_equal_scores_do_not_differ() -> None:
    assert difference([1.0, 0.0], [1.0, 0.0]).p == 1.0


def test_scores_of_different_lengths_are_not_paired() -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        difference([1.0], [1.0, 0.0])


def test_no_question_gives_no_estimate() -> None:
    assert estimate([]).questions == 0
    assert np.isnan(estimate([]).value)


def test_a_p_too_small_for_three_digits_is_told_as_a_bound() -> None:
    assert str(difference([0.0] * 50, [1.0] * 50)).endswith(", p < 0.001")
    assert str(difference([1.0, 0.0], [1.0, 0.0])).endswith(", p = 1.000")
