"""Question answering: normalisation, exact match and F1 against the best reference, by the rule of SQuAD's official script."""

import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

MARKS = 30  # as in the stream-safe format of Unicode (UAX 15)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@cache
def _punctuation() -> dict[int, None]:
    """Return the punctuation of every script and all of ASCII's, to be deleted."""
    others = (code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("P"))
    return dict.fromkeys([*map(ord, string.punctuation), *others])


@cache
def _long_runs() -> re.Pattern[str]:
    """Return the combining characters after the first MARKS of a row."""
    marks = "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code)))
    return re.compile(f"(?<=[{marks}]{{{MARKS}}})[{marks}]+")


def normalise(text: str) -> str:
    """Return the text in lowercase, without punctuation and English articles, with single spaces (SQuAD v1.1, arXiv 1606.05250,
    evaluation script).

    Two additions, which change no comparison of two ASCII answers that keep a word: the punctuation of every script is deleted,
    as MLQA's script does (arXiv 1910.07475), and text is composed first (NFC), so that two spellings of one letter are equal.
    A deletion that would leave nothing is not made: "The The" stays, and so does "?!". Of a row of combining characters only the
    first MARKS count: composing takes the square of a row's length, and no language has longer ones.
    """
    lowered = " ".join(unicodedata.normalize("NFC", _long_runs().sub("", text)).lower().split())
    bare = " ".join(lowered.translate(_punctuation()).split())
    return " ".join(_ARTICLES.sub(" ", bare).split()) or bare or lowered


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1.0 if the answer equals a reference after normalisation."""
    normalised = normalise(answer)
    return float(any(normalised == normalise(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the F1 of the words that answer and reference share, with the best reference; two texts without a word are equal."""
    words = normalise(answer).split()
    return max((overlap(words, normalise(reference).split()) for reference in references), default=0.0)


def overlap(answer: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F1 of the words of two texts; two texts without a word are equal."""
    if not answer or not reference:
        return float(answer == reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference))
