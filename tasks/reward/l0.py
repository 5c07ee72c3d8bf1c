"""L0's reward as its code computes it, including its faults, for `reward.compat: l0` (arXiv 2506.23667, repository cmriat/l0).

Differences from the default: everything except [a-z0-9] and white space is deleted, so any two answers without such text are
equal; an empty answer is an answer; an empty reference pays EMPTY_GOLD at every step, whatever the answer; a silent cell earns
nothing. The weights of QA are those that L0's training passes, which are not the paper's: see L0_WEIGHTS in settings.py.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nbrl.tasks.reward.rules.qa import overlap
from nbrl.tasks.reward.settings import QaWeights

EMPTY_GOLD = 0.5


def normalise(text: str) -> str:
    """Return the text in lowercase, nothing but [a-z0-9] and white space, single spaces; articles stay."""
    return " ".join(re.sub(r"[^a-z0-9\s]", "", text.lower()).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    return float(any(normalise(answer) == normalise(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the token F1 with the best reference; two texts without a token are equal."""
    return max((overlap(normalise(answer).split(), normalise(reference).split()) for reference in references), default=0.0)


def empty_gold(references: Sequence[str]) -> bool:
    return not any(references)


def qa_reward(answer: str | None, references: Sequence[str], weights: QaWeights) -> float:
    if empty_gold(references):
        return EMPTY_GOLD
    if answer is None:
        return weights.scaled(0.0)
    score = weights.f1 * f1(answer, references) + weights.exact * exact_match(answer, references) + weights.answered
    return weights.scaled(score)


def execution_of(step: Mapping[str, Any]) -> float:
    """Return 1 - errors / outputs; 0 without an output."""
    outputs = step["outputs"]
    return 1.0 - sum(output["kind"] == "error" for output in outputs) / len(outputs) if outputs else 0.0
