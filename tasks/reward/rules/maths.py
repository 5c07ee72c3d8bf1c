"""Mathematics, by value: numbers with units as the rule `number` has them, all else by expressions.py in a confined process."""

import re
from collections.abc import Mapping, Sequence
from decimal import Context
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from nbrl.tasks.reward.rules import confined, number
from nbrl.tasks.reward.rules.marks import plain, said, unmarked
from nbrl.tasks.reward.rules.number import Quantity, is_product, same
from nbrl.tasks.reward.rules.number_words import CURRENCIES

RULE = "math"
MODULES = {
    f"nbrl/tasks/reward/rules/{name}": str(Path(__file__).with_name(name))
    for name in ("expressions.py", "equality.py", "notation.py", "written.py", "number_words.py", "marks.py")
}
LONGEST = 1000  # characters of what may be a number and its unit
_BARE = re.compile(r"[+-]?\d*\.?\d+(?:[eE][+-]?\d+)?")
_DIGITS = re.compile(r"^[\s$€£¥+-]*[\d.,/\s]*\d")
_PRODUCT = re.compile(r"\d[A-Za-z]{1,3}\s*$")  # of a number and variables
_EXACT = Context(prec=400)


def scores(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return 1 for each row whose `answer` equals one of its `answers`, else 0. Raises RewardError without the package."""
    results = [0.0] * len(rows)
    asked: dict[int, dict[str, Any]] = {}
    for place, row in enumerate(rows):
        given = _said(row["answer"])
        verdicts = {each: _verdict(given, each) for each in row["answers"]}
        results[place] = float(True in verdicts.values())
        if not results[place] and (left := [each for each, verdict in verdicts.items() if verdict is None]):
            asked[place] = {"answer": _for_package(given), "answers": [_for_package(each) for each in left]}
    for place, done in zip(asked, confined.compare(RULE, list(asked.values()), MODULES), strict=True):
        results[place] = float(done.get("score") == 1.0)
    return results


@lru_cache(1 << 16)
def quantity(text: str) -> Quantity | None:
    """Return the quantity as number.quantity does, but not for a possible product of variables."""
    if len(text) > LONGEST:
        return None
    found, text = number.quantity(text), plain(unmarked(text))
    return None if found and found.binds and (_PRODUCT.search(text) or is_product(_DIGITS.sub("", text))) else found


def _said(answer: str) -> str:
    """Return the end of a sentence that states the answer, if a number or an expression follows there; else the whole answer."""
    text = answer if quantity(answer) else said(answer)
    return text if re.search(r"\d|\\|\$", text) else answer


def _verdict(given: str, reference: str) -> bool | None:
    """Return the verdict of the rule `number` on the two; None where the package decides, as of two decimals or percentages."""
    if given.strip() == reference.strip():
        return True
    one, other = quantity(given), quantity(reference)
    if one is None or other is None:
        return False if (one or other or Quantity(Fraction(0))).binds else None
    if same(one, other):
        return True
    whole = one.value.denominator == other.value.denominator == 1
    return False if one.unit or other.unit or one.binds or other.binds or (whole and one.share == other.share) else None


def _for_package(text: str) -> str:
    """Return a text as the package gets it: of a number with a factor, a currency or a unit its value, and a unit of letters."""
    number = quantity(text)
    if number is None or number.binds or _PRODUCT.search(text) or _BARE.fullmatch(text.strip()):
        return text
    over, under = number.value.as_integer_ratio()
    decimal = _EXACT.divide(over, under)
    value = f"{decimal:f}" if Fraction(decimal) == number.value else f"{over}/{under}"
    if number.share:
        return rf"{value}\%"
    unit = CURRENCIES.get(number.unit, number.unit).partition(" ")[0]
    return rf"{value}\text{{ {unit}}}" if unit.isalpha() else value
