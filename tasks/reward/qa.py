"""Question answering: normalisation, exact match and F1 against the best reference."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

from tasks.reward.settings import QaWeights

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def normalise(text: str) -> str:
    """SQuAD's normalisation (lowercase, no punctuation, no articles, single spaces), kept meaningful in every script."""
    folded = unicodedata.normalize("NFKC", text).lower()
    bare = "".join(" " if c in _PUNCTUATION or unicodedata.category(c).startswith("P") else c for c in folded)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _words(text: str) -> list[str]:
    return normalise(text).split()


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1.0 when the answer equals a reference after normalisation; an answer that normalises to nothing equals only itself."""
    given = normalise(answer)
    if not given:
        return float(any(answer.strip() == reference.strip() for reference in references))
    return float(any(given == normalise(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Token F1 with the best reference."""
    return max((_f1(answer, reference) for reference in references), default=0.0)


def qa_reward(answer: str | None, references: Sequence[str], weights: QaWeights) -> float:
    """The weighted sum of F1, exact match and having answered; no answer scores 0."""
    if answer is None:
        return weights.scaled(0.0)
    return weights.scaled(
        weights.f1 * f1(answer, references) + weights.exact * exact_match(answer, references) + weights.answered
    )


def _f1(answer: str, reference: str) -> float:
    given, wanted = _words(answer), _words(reference)
    if not given or not wanted:
        return exact_match(answer, [reference])
    common = sum((Counter(given) & Counter(wanted)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(given), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
