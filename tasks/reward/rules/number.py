"""Numbers, compared by value: 6.0 equals 6, 1,000 equals 1000, 2½ 2.5, and 4 million 4,000,000; -4 is not 4, nor is 50% 50.

The text behind the digits is a factor, a share, a unit or a part of an expression, and only a unit may be left out.
"""

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from nbrl.tasks.reward.rules import number_words as known
from nbrl.tasks.reward.rules.arithmetic import arithmetic
from nbrl.tasks.reward.rules.marks import LONGEST, carries, plain, said, unmarked
from nbrl.tasks.reward.rules.qa import normalise

DIGITS = 100  # characters of a number, and the largest exponent: what is longer costs time and is no answer
UNIT_WORDS = 3
_MINUS = str.maketrans("−–‐‑﹣－", "------")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
_BEFORE = r"(?P<sign>[+-]?)\s*(?P<currency>[$€£¥¢₹]?)\s*(?P<inner>[+-]?)"
_WHOLE = r"(?P<whole>\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ \u202f\u00a0]\d{3})+|\d+)"
_DECIMAL = rf"(?:{_WHOLE}(?P<fraction>\.\d*)?|(?P<bare>\.\d+))(?:[eE](?P<exponent>[+-]?\d{{1,3}}))?"
# The numerator behind a whole number has two digits at most: 1 234/567 may be either of two numbers.
_FRACTION = r"(?:(?P<mixed>\d+)\s+(?=[1-9]\d?\s*/))?(?P<over>\d+)\s*/\s*(?P<under>\d+)"
# Units may have powers: m2, m/s^2, s⁻¹, of which NFKC makes s−1. "2x5" and "1e9999" are no units.
_POWERED = r"[^\W\d_xX]"
_POWER = rf"(?:(?<={_POWERED})|(?<={_POWERED}[−^])|(?<={_POWERED}\^[-−]))\d(?!\d)"
_UNIT = rf"(?!\s*[eE][-+]?\d)(?P<unit>(?:[^\d]|{_POWER})*)"
_NUMBER = re.compile(rf"{_BEFORE}(?:{_FRACTION}|{_DECIMAL}){_UNIT}")
# Raised or lowered after what is no letter: NFKC would make a part of the number of it.
_RAISED = re.compile(r"(?<![^\W\d_])(?<![^\W\d_]⁻)[⁰¹²³⁴-⁹⁺⁻ⁿ₀-₉]")

_TENFOLD = re.compile(
    r"(?:(?<=\d)(?P<times>\s*[×xX*·]\s*)|(?<![\d.,])(?<!\d\s))10(?:\s*(?:\^|\*\*)\s*[({]?(?P<power>[+−-]?\d{1,2})[)}]?|(?P<raised>[⁺⁻]?[⁰¹²³⁴-⁹]{1,2}))"
    r"(?![\d⁰¹²³⁴-⁹])"
)
_PARTS = {"half": "1/2", "third": "1/3", "quarter": "1/4"}
_AND_PART = re.compile(r"(?<=\d)\s+and\s+(?:a|one)\s+(half|third|quarter)\b", re.IGNORECASE)

_PRINTED = 15  # significant digits, from which on a decimal may be a float as it is printed
_NOISE = Fraction(1, 10**14)  # relative; such decimals that differ by less are equal
_BRACKETS = re.compile(r"\(([^()]*)\)|\[([^][]*)\]")
_LABELLED = re.compile(r"(?P<before>[^:=]*)[:=]\s*(?P<said>[^:=]*\S)")
_EACH = re.compile(
    r"(?:(?<=[^\W\d_])|^)\s+an?\s+(?=(?:second|minute|hour|day|night|week|month|year|piece|person|head|pound|gallon)\b)"
)
_MEGA = re.compile(r"\bM(?=[A-Za-z]?\b)")  # 5 MW is not 5 mW


class Quantity(NamedTuple):
    """A number and what follows it: a share (`%`) or nothing, and a unit, which `binds` if it may not be left out.

    A currency is a unit, in any place.
    """

    value: Fraction
    unit: str = ""
    share: str = ""
    binds: bool = False
    printed: bool = False


def quantity(text: str) -> Quantity | None:
    """Return the number that the text consists of, with its unit; None if the text is anything else."""
    if len(text) > LONGEST:
        return None
    text = unmarked(said(unmarked(text)))
    while around := _BRACKETS.fullmatch(text):
        text = unmarked(around[1] or around[2] or "")
    text = plain(text)
    if len(text) > DIGITS:
        return None
    text = re.sub(r"(?<=\d)_(?=\d{3}(?!\d))", "", text)
    text = known.MONEY_FIRST.sub(lambda found: known.SIGNS_OF_MONEY[found[1].upper()], text)
    text = _TENFOLD.sub(_exponent, text)
    if _RAISED.search(text):
        return None
    text = _VULGAR.sub(lambda found: " " + unicodedata.normalize("NFKC", found[0]).replace("⁄", "/"), text)
    text = unicodedata.normalize("NFKC", text.translate(_MINUS)).strip().strip("*`").strip()
    text = _AND_PART.sub(lambda found: f" {_PARTS[found[1].lower()]}", text)
    found = _NUMBER.fullmatch(text) if len(text) <= DIGITS else None
    if found is None or (found["sign"] and found["inner"]) or (value := _value(found)) is None:
        return None
    negative = "-" in (found["sign"], found["inner"])
    measured = _measured(-value if negative else value, found["unit"], found["currency"])
    return measured and measured._replace(printed=_is_printed(found))


def _exponent(found: re.Match[str]) -> str:
    """Return the exponent of 1.2 × 10^6 and 10^6 as e6."""
    if found["raised"] and not found["times"]:
        return found[0]
    exponent = unicodedata.normalize("NFKC", found["raised"] or found["power"]).translate(_MINUS)
    return f"e{exponent}" if found["times"] else f"1e{exponent}"


def same_decimal(one: str, other: str) -> bool:
    """Return whether two decimals are equal, of which a float may have printed one."""
    matches = [_NUMBER.fullmatch(each) for each in (one, other)]
    values = [Quantity(value, printed=_is_printed(each)) for each in matches if each and (value := _value(each)) is not None]
    return len(values) == 2 and _same_value(*values)


def _same_value(one: Quantity, other: Quantity) -> bool:
    near = one.printed or other.printed
    return one.value == other.value or (near and abs(one.value - other.value) <= _NOISE * max(abs(one.value), abs(other.value)))


def _is_printed(found: re.Match[str]) -> bool:
    digits = (found["whole"] or "") + (found["fraction"] or found["bare"] or "")
    return "." in digits and len(re.sub(r"\D", "", digits).lstrip("0")) >= _PRINTED


def _value(found: re.Match[str]) -> Fraction | None:
    """Return the value of the digits."""
    if found["over"]:
        over, under = int(found["over"]), int(found["under"])
        if under == 0 or (found["mixed"] and over >= under):
            return None
        return int(found["mixed"] or 0) + Fraction(over, under)
    exponent = int(found["exponent"] or 0)
    if abs(exponent) > DIGITS:
        return None
    whole = re.sub(r"\D", "", found["whole"] or "") or "0"
    fraction = (found["fraction"] or found["bare"] or ".")[1:]
    return Fraction(int(whole + fraction), 10 ** len(fraction)) * Fraction(10) ** exponent


def _measured(value: Fraction, behind: str, money: str) -> Quantity | None:
    """Return the number with the text behind its digits; None if that makes an expression of it."""
    attached, behind = behind[:1].isalpha(), _EACH.sub(" per ", behind)
    rest = " ".join(behind.strip(" \t\n.,:;?-").split())
    while factor := known.LETTERS.match(rest):
        word = factor[0] if factor[0] in known.FACTORS else factor[0].lower()
        after = rest[factor.end() :].lstrip(" -")
        single = word in known.MONEY and (money or _is_currency(after))
        if rest[factor.end() :][:1] in known.POWERS or (not single and (word not in known.FACTORS or factor[0] == "K")):
            break
        value *= Fraction(10) ** known.MONEY[word] if single else known.FACTORS[word]
        rest, attached, behind = after, False, after
    share = next((name for name in known.SHARES if rest.lower().startswith(name) and not rest[len(name) :][:1].isalpha()), "")
    if share:
        value, rest = value * Fraction(10) ** known.SHARES[share], rest[len(share) :].strip(" .")
    words = [word if len(word) == 1 else word.lower() for word in known.LETTERS.findall(rest)]
    if len(rest.split()) > UNIT_WORDS or known.SIGNS.search(rest) or known.EXPRESSION.intersection(words):
        return None
    # A hyphen would be deleted as punctuation is.
    unit = _unit(rest) if rest else ""
    unit = next((sign for sign, names in known.CURRENCIES.items() if rest == sign or unit in names.split()), unit or money)
    binds = (
        bool(known.BINDING.intersection(words))
        or any(known.LARGE.search(word) or known.PART.fullmatch(word) for word in words)
        or "%" in rest
        or bool(known.CAPITAL.fullmatch(rest))
    )
    binds = binds or (attached and bool(known.VARIABLES.fullmatch(rest))) or is_product(behind)
    return Quantity(value, unit, "%" if share else "", binds)


def _unit(text: str) -> str:
    """Return one spelling of a unit: "meters" and "metre" are m; case separates Mb from MB, and a stroke m/s from ms."""
    words = _MEGA.sub("mega", text).replace("^-", "^−").replace("·", " ").replace("⋅", " ")
    parts = [normalise(part) for part in words.split("/")]
    parts = [" ".join(known.UNITS.get(word, word) for word in part.split()) for part in parts]
    plain = "/".join(parts)
    return text if plain in known.CASED and any(each.isupper() for each in text) else plain


def is_product(behind: str) -> bool:
    """Return whether the text behind the digits of a number may be variables or a function, which multiply it."""
    words = re.findall(r"(?<![^\W\d_])[a-z]{1,2}(?![^\W\d_])", behind)
    return bool(known.APPLIED.search(behind)) or any(word not in known.SYMBOLS for word in words)


def _is_currency(text: str) -> bool:
    return bool(re.match(r"[$€£¥¢₹]|(?:usd|eur|gbp|jpy|chf|cny|inr|dollars?|euros?|pounds?|yen)\b", text, re.IGNORECASE))


def equal(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if the answer has the value of a reference.

    Where both have a unit, the units must be equal too, by the rule of question answering. A share equals only a share.
    """
    given = _read(answer)
    return float(given is not None and any(same(given, _read(reference)) for reference in references))


def _read(text: str) -> Quantity | None:
    return quantity(text) or quantity(_result(text))


def _result(text: str) -> str:
    """Return the text behind a label or a name, as in "Total: 5" and "x = 5", or behind a sum of its value; else the text."""
    match = _LABELLED.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if match is None:
        return text
    if carries(match["before"]) and not match["before"].startswith(("-", "−")):
        return match["said"]
    computed, said_value = arithmetic(match["before"]), quantity(match["said"])
    return match["said"] if said_value and computed is not None and computed == said_value.value else text


def same(given: Quantity, wanted: Quantity | None) -> bool:
    """Return whether both are of one value, and neither lacks what the other's value depends on."""
    if wanted is None or given.share != wanted.share or not _same_value(given, wanted):
        return False
    return given.unit == wanted.unit or ("" in (given.unit, wanted.unit) and not given.binds and not wanted.binds)
