"""Numbers, compared by value: 6.0 equals 6, 1,000 equals 1000, 1/2 equals 0.5; -4 is not 4, 3.5 is not "3 5", 10² is not 102."""

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from nbrl.tasks.reward.rules.qa import normalise

DIGITS = 100  # characters of a number, and the largest exponent: what is longer costs time and is no answer
UNIT_WORDS = 3
_MINUS = str.maketrans("−–‐‑﹣－", "------")
_BEFORE = r"(?P<sign>[+-]?)\s*(?P<currency>[$€£¥]?)\s*(?P<inner>[+-]?)"
_WHOLE = r"(?P<whole>\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ \u202f\u00a0]\d{3})+|\d+)"
_DECIMAL = rf"(?:{_WHOLE}(?P<fraction>\.\d*)?|(?P<bare>\.\d+))(?:[eE](?P<exponent>[+-]?\d{{1,3}}))?"
# Units may have powers: m2, m/s^2, s⁻¹, of which NFKC makes s−1. "2x5" and "1e9999" are no units.
_POWERED = r"[^\W\d_xX]"
_POWER = rf"(?:(?<={_POWERED})|(?<={_POWERED}[−^])|(?<={_POWERED}\^[-−]))\d(?!\d)"
_UNIT = rf"(?!\s*[eE][-+]?\d)\s*(?P<unit>(?:[^\d]|{_POWER})*)"
_NUMBER = re.compile(rf"{_BEFORE}(?:(?P<over>\d+)\s*/\s*(?P<under>\d+)|{_DECIMAL}){_UNIT}")
# Raised or lowered after what is no letter: NFKC would make a part of the number of it.
_RAISED = re.compile(r"(?<![^\W\d_])(?<![^\W\d_]⁻)[⁰¹²³⁴-⁹⁺⁻ⁿ₀-₉]")


class Quantity(NamedTuple):
    """A number and the words after it; a currency's sign in front is dropped."""

    value: Fraction
    unit: str


def quantity(text: str) -> Quantity | None:
    """The number that the text consists of, with its unit; None if the text is anything else."""
    if _RAISED.search(text):
        return None
    text = unicodedata.normalize("NFKC", text.translate(_MINUS)).strip().strip("*`").strip()
    found = _NUMBER.fullmatch(text) if len(text) <= DIGITS else None
    if found is None or (found["sign"] and found["inner"]):
        return None
    if found["over"]:
        if int(found["under"]) == 0:
            return None
        value = Fraction(int(found["over"]), int(found["under"]))
    else:
        exponent = int(found["exponent"] or 0)
        if abs(exponent) > DIGITS:
            return None
        whole = re.sub(r"\D", "", found["whole"] or "") or "0"
        fraction = (found["fraction"] or found["bare"] or ".")[1:]
        value = Fraction(int(whole + fraction), 10 ** len(fraction)) * Fraction(10) ** exponent
    unit = found["unit"].strip(" .").replace("^-", "^−")  # a hyphen would be deleted as punctuation is
    if len(unit.split()) > UNIT_WORDS:
        return None
    negative = "-" in (found["sign"], found["inner"])
    return Quantity(-value if negative else value, unit if unit in ("", "%") else normalise(unit))


def equal(answer: str, references: Sequence[str]) -> float:
    """1.0 if the answer has the value of a reference.

    Where both have a unit, the units must be equal too, by the rule of question answering. A percent sign is a unit that only a
    percent sign equals.
    """
    given = quantity(answer)
    return float(given is not None and any(_same(given, quantity(reference)) for reference in references))


def _same(given: Quantity, wanted: Quantity | None) -> bool:
    if wanted is None or given.value != wanted.value:
        return False
    units = {given.unit, wanted.unit}
    return len(units) == 1 or ("" in units and "%" not in units)
