"""The sigmoid of a curve: found where it is, and never told more exactly than the points allow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.tasks.comparison import sigmoid
from nbrl.tasks.comparison.sigmoid import LEAST, WIDEST, CurvePoint, Fit, Sigmoid, fit

TRUE = Sigmoid(start=0.1, ceiling=0.8, middle=3e5, steepness=2.0)


def points(curve: Sigmoid, count: int = 12, noise: float = 0.0, seed: int = 0, until: float = 1e6) -> list[CurvePoint]:
    tokens = np.linspace(0, until, count)
    success = curve.at(tokens) + noise * np.random.default_rng(seed).normal(size=count)
    return [CurvePoint(float(x), float(y)) for x, y in zip(tokens, success, strict=True)]


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer draws tell the interval less exactly and take a fifth of the time; the test of its coverage makes all."""
    monkeypatch.setattr(sigmoid, "RESAMPLES", 40)


def width(found: Fit) -> float:
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


def test_the_curve_is_the_published_one() -> None:
    tokens = np.array([1.0, 5e4, 3e5, 9e5])
    said = 0.1 + (0.8 - 0.1) / (1 + (3e5 / tokens) ** 2.0)
    assert TRUE.at(tokens) == pytest.approx(said)
    assert TRUE.at([0.0]) == pytest.approx([0.1])
    assert TRUE.at([TRUE.middle]) == pytest.approx([0.45])


@settings(max_examples=3, deadline=None)
@given(
    start=st.floats(0.0, 0.4),
    rise=st.floats(0.2, 0.55),
    middle=st.floats(1e5, 5e5),
    steepness=st.floats(1.0, 4.0),
    count=st.integers(8, 20),
)
def test_data_of_a_sigmoid_give_its_ceiling_back(start: float, rise: float, middle: float, steepness: float, count: int) -> None:
    true = Sigmoid(start=start, ceiling=start + rise, middle=middle, steepness=steepness)
    found = fit(points(true, count))
    assert found.is_determined
    assert found.sigmoid is not None
    assert found.sigmoid.ceiling == pytest.approx(true.ceiling, abs=0.02)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.sigmoid.ceiling <= found.high <= 1.0


@pytest.mark.more
@pytest.mark.parametrize("seed", range(2))
def test_noise_widens_the_interval(seed: int) -> None:
    widths = [width(fit(points(TRUE, noise=noise, seed=seed))) for noise in (0.0, 0.01, 0.06)]
    assert widths == sorted(widths)
    assert widths[0] < 0.01 < widths[2]


@pytest.mark.more
def test_the_interval_holds_the_ceiling_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sigmoid, "RESAMPLES", 200)
    found = [fit(points(TRUE, noise=0.03, seed=seed)) for seed in range(5)]
    assert sum(each.low is not None and each.high is not None and each.low <= 0.8 <= each.high for each in found) >= 4


def test_few_points_tell_no_ceiling() -> None:
    found = fit(points(TRUE, LEAST - 1))
    assert (found.is_determined, found.sigmoid) == (False, None)
    assert str(found) == "not determined: 5 points, and a fit needs 6"
    assert fit([]).points == 0


@pytest.mark.more
def test_a_curve_that_is_cut_off_before_it_bends_tells_no_ceiling() -> None:
    found = fit(points(TRUE, noise=0.02, until=1.5e5))
    assert not found.is_determined
    assert width(found) > WIDEST
    assert "its interval is [" in str(found)


@pytest.mark.parametrize("success", [[0.0] * 8, [1.0] * 8, [0.5, 0.6] * 4, [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]])
def test_a_curve_that_does_not_rise_tells_no_ceiling(success: list[float]) -> None:
    found = fit([CurvePoint(1e4 * number, each) for number, each in enumerate(success)])
    assert found.why == "the curve rises no more than it scatters"


def test_points_without_tokens_tell_no_ceiling() -> None:
    assert fit([CurvePoint(0.0, 0.1 * number) for number in range(8)]).why == "no tokens were sampled between the points"


@pytest.mark.more
def test_the_same_points_always_have_the_same_fit() -> None:
    made = points(TRUE, noise=0.05)
    assert fit(made) == fit(made)
