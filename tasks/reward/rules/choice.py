"""Multiple choice: the letter of an option counts, however it is written: "B", "(b)", "B." and "B) the second" are equal."""

import re
from collections.abc import Sequence

LONGEST = 1000  # characters; what is longer names no option
_OPTION = re.compile(
    r"(?:option|answer|choice)?\s*[:*`]*\s*[(\[]?\s*([A-Za-z])\s*(?:[)\].:*`]+(?:\s.*)?|)", re.DOTALL | re.IGNORECASE
)


def option(text: str) -> str | None:
    """The upper-case letter of the option that the text names; None if it names none, as a sentence that begins with "A" does."""
    words = " ".join(text[: 2 * LONGEST].split()).strip("*`").strip()
    found = _OPTION.fullmatch(words) if len(words) <= LONGEST else None
    return found[1].upper() if found else None


def equal(answer: str, references: Sequence[str]) -> float:
    """1.0 if the answer names the option of a reference."""
    given = option(answer)
    return float(given is not None and any(option(reference) == given for reference in references))
