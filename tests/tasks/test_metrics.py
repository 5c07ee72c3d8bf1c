"""Metrics carry how several of them become one."""

import pytest

from nbrl.tasks.metrics import Metric, of, reduce


def test_each_metric_is_reduced_as_it_says() -> None:
    several = [
        {"count": Metric(4.0, "sum"), "share": Metric(0.2), "worst": Metric(3.0, "max"), "lr": Metric(0.1, "last")},
        {"count": Metric(2.0, "sum"), "share": Metric(0.4), "worst": Metric(1.0, "max"), "lr": Metric(0.2, "last")},
    ]
    assert reduce(several) == pytest.approx({"count": 6.0, "share": 0.3, "worst": 3.0, "lr": 0.2})
    assert reduce([of({"mismatch": value}, "first") for value in (1.0, 5.0)]) == {"mismatch": 1.0}


def test_a_metric_that_some_lack_is_reduced_over_the_others() -> None:
    assert reduce([{"a": Metric(1.0)}, {"b": Metric(2.0, "sum")}, {"a": Metric(3.0)}]) == {"a": 2.0, "b": 2.0}
