"""Multiple choice: the letter of an option counts, however it is written: "B", "(b)", "B." and "B) the second" are equal.

An answer that names two options names none, for it would be right by either.
"""

import re
from collections.abc import Sequence

LONGEST = 1000  # characters; what is longer names no option
_WRAPPED = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}|\$([^$]*)\$")
_OPTION = re.compile(
    r"(?:(?:so|thus|therefore|hence|i choose|it is)\b,?\s*)?"
    r"(?:(?:the\s+)?(?:(?:correct|right|best|final)\s+)*(?:option|answer|choice)(?:\s+(?:is|would\s+be))?"
    r"(?:\s+(?:option|choice))?)?"
    r"[\s:*`\"'(\[{#]*([A-Za-z])\s*"
    r"(?:[)\].:*`\"',}]+$|[)\].:*`\"']+\s(.*)|\s[-–—]\s(.*)|\s\((.*)\)\.?|\s(because\b.*)"
    r"|\sis\s(?:the\s)?(?:correct|right)(?:\s(?:answer|option|choice))?\.?|)",
    re.DOTALL | re.IGNORECASE,
)
_SINGLE = re.compile(r"\b[B-HJ-Z]\b(?!')")
_SPACE = re.compile(r"\\[ ,;]|~|\\q?quad\b")
_ANSWER = re.compile(r"\b(?:answer|option|choice)\s+(?:is\s+)?(?:option\s+)?[(*]*([A-Z])\b(?!')", re.IGNORECASE)
# What names another option after the first: "or C", "/ C", a letter alone, one with a bracket.
_JOINED = re.compile(r"\W*(?:(?:and|or|not)\b|[/,;&|+])\W*([A-Za-z])(?![\w'])", re.IGNORECASE)
_ALONE = re.compile(r"\W*([A-Z])\W*")
# A letter in brackets, or with one; P(A) and O(N) are none, nor is (I), the first of several statements.
_LATER = re.compile(r"(?<![\w'(\[])[(\[]?([A-HJ-Z])[)\]]")


def option(text: str) -> str | None:
    """Return the upper-case letter of the option that the text names; None if it names none, as a sentence beginning with "A"."""
    first, _, below = text.strip().partition("\n")
    if below and len(text) <= LONGEST and (explained := option(first)):  # with an explanation below it
        others = {*_LATER.findall(below), *(each.upper() for each in _ANSWER.findall(below))} - {explained}
        return None if others else explained
    words = " ".join(_SPACE.sub(" ", text[: 2 * LONGEST]).split()).strip("*`").strip()
    if len(words) > LONGEST:
        return None
    while (plain := _WRAPPED.sub(lambda found: found[1] or found[2] or "", words).strip()) != words:
        words = plain
    found = _OPTION.fullmatch(words)
    if found is None:
        return None
    letter, rest = found[1], next(filter(None, found.groups()[1:]), "")
    named = {letter.upper(), *_LATER.findall(rest)}
    if rest.startswith("because"):
        named |= set(_SINGLE.findall(rest))
    if second := _ALONE.fullmatch(rest) if letter.isupper() else None:
        named.add(second[1])
    if (second := _JOINED.match(rest)) and (second[1].isupper() or letter.islower()):
        named.add(second[1].upper())
    return letter.upper() if len(named) == 1 else None


def equal(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if the answer names the option of a reference."""
    given = option(answer)
    return float(given is not None and any(option(reference) == given for reference in references))
