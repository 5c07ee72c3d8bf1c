"""A learning test passes by all of the gain's interval, or by what is expected."""

from xml.etree import ElementTree

import pytest

from nbrl.tasks.comparison.learned import LearningTest, judged, junit
from nbrl.tasks.evaluation.statistics import Difference

GAIN = Difference(value=0.2, low=0.11, high=0.29, p=0.0, questions=50)


@pytest.mark.parametrize(
    ("margin", "expected", "passed"),
    [(0.11, None, True), (0.12, None, False), (0.05, 0.74, True), (0.05, 0.76, False), (0.0, 0.7, True)],
)
def test_the_margin_is_of_the_gain_or_of_what_is_expected(margin: float, expected: float | None, passed: bool) -> None:
    test = judged(0.5, 0.7, GAIN, margin, expected)
    assert test.passed is passed
    assert "on 50 held-out questions" in test.reason
    assert test.figures["after"] == 0.7


def test_a_failure_is_one_in_the_report_too() -> None:
    suite = ElementTree.fromstring(junit('r "<&', 12.34, LearningTest(False, "it did not", {"gain": 0.25})))
    assert suite.attrib["failures"] == "1"
    case = suite.find("testcase")
    assert case is not None
    assert case.attrib["name"] == 'r "<& learns'
    failure, gain = case.find("failure"), case.find("properties/property")
    assert failure is not None
    assert failure.attrib["message"] == "it did not"
    assert gain is not None
    assert gain.attrib == {"name": "gain", "value": "0.25"}
    passed = ElementTree.fromstring(junit("r", 1.0, LearningTest(True, "it did", {})))
    assert passed.attrib["failures"] == "0"
    assert passed.find("testcase/failure") is None
