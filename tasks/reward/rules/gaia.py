"""Short answers of GAIA (arXiv 2311.12983), compared as its leaderboard does: the reference decides what is compared.

A number is compared by value; $, % and commas in the answer do not count. A list, with commas or semicolons, needs as many
items in the same order, each compared as a number or as text with its punctuation. Any other text is compared without
punctuation. In text neither case nor white space counts.
"""

import math
import re
import string
from collections.abc import Sequence

_SEPARATOR = re.compile("[,;]")
_UNITS = str.maketrans("", "", "$%,")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def equal(answer: str, answers: Sequence[str]) -> float:
    """Return 1 if the answer equals one of the references, else 0."""
    return float(any(_equal(answer, reference) for reference in answers))


def _equal(answer: str, reference: str) -> bool:
    if _number(reference) is not None:
        return _same_number(answer, reference)
    if _SEPARATOR.search(reference):
        given, expected = _SEPARATOR.split(answer), _SEPARATOR.split(reference)
        return len(given) == len(expected) and all(map(_same_item, given, expected))
    return _bare(answer) == _bare(reference)


def _same_item(answer: str, reference: str) -> bool:
    return _text(answer) == _text(reference) if _number(reference) is None else _same_number(answer, reference)


def _same_number(answer: str, reference: str) -> bool:
    return _number(answer.translate(_UNITS)) == _number(reference)


def _number(text: str) -> float | None:
    """Return the finite number that the text is; nan, which equals not even itself, and inf are words."""
    try:
        return number if math.isfinite(number := float(text)) else None
    except ValueError:
        return None


def _bare(text: str) -> str:
    """Return the text without its punctuation, unless it has nothing else."""
    return _text(text).translate(_PUNCTUATION) or _text(text)


def _text(text: str) -> str:
    return "".join(text.split()).lower()
