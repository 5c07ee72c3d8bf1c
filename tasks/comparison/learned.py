"""Judges whether a training learned, by its held-out questions before and after; for tests of changes to its code or data."""

import re
from typing import NamedTuple
from xml.etree import ElementTree

from nbrl.tasks.evaluation.statistics import Difference

NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class LearningTest(NamedTuple):
    """Whether it passed, the reason in a sentence, and the figures behind it."""

    passed: bool
    reason: str
    figures: dict[str, float]


def judged(before: float, after: float, gain: Difference, margin: float, expected: float | None) -> LearningTest:
    """Judge the success of a run before its first update and after the last, and the gain on the same questions.

    Without an `expected` success the gain must be at least the margin, with all of its 95 % interval; with one, the success may
    be worse than that by the margin at most.
    """
    figures = {"before": before, "after": after, "questions": float(gain.questions)}
    if expected is not None:
        words = f"success is {after:.3f} on {gain.questions} held-out questions, where {expected:.3f} less {margin:g} is expected"
        return LearningTest(after >= expected - margin, words, {**figures, "expected": expected})
    figures |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
    words = (
        f"success went from {before:.3f} to {after:.3f} on {gain.questions} held-out questions: a gain of {gain.value:.3f}, 95 % "
        f"interval {gain.low:.3f} to {gain.high:.3f}, where {margin:g} at least is expected"
    )
    return LearningTest(gain.low >= margin, words, figures)


def junit(name: str, seconds: float, test: LearningTest) -> bytes:
    """Return a report with one test case in JUnit's format; its properties are the figures."""
    suite = ElementTree.Element(
        "testsuite", name="nbrl ci", tests="1", failures=str(int(not test.passed)), errors="0", time=f"{seconds:.1f}"
    )
    case = ElementTree.SubElement(
        suite, "testcase", classname="nbrl", name=f"{NO_XML.sub('�', name)} learns", time=f"{seconds:.1f}"
    )
    properties = ElementTree.SubElement(case, "properties")
    for key, value in test.figures.items():
        ElementTree.SubElement(properties, "property", name=key, value=f"{value:g}")
    reason = NO_XML.sub("�", test.reason)
    if test.passed:
        ElementTree.SubElement(case, "system-out").text = reason
    else:
        ElementTree.SubElement(case, "failure", message=reason).text = reason
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
