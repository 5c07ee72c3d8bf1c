"""decontaminate: no question of an evaluation file, nor one too like it, is trained on."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from nbrl.tasks.prepare.rows import Map, Reason, marked
from nbrl.tasks.prepare.settings import DecontaminateSettings
from nbrl.tasks.prepare.similar import Index, normalise, signatures

STAGE = "decontaminate"
EQUAL, NEAR, SHARED = "equals an evaluation question", "near an evaluation question", "shares words with an evaluation question"
SHOWN_CHARS = 120
_WORD = re.compile(r"\w+")


def decontaminate(
    questions: pa.Table, evaluation: Mapping[str, Sequence[str]], settings: DecontaminateSettings, map_: Map
) -> pa.Table:
    """The questions, marked; `evaluation` has the questions of each evaluation file by its name.

    The detail of a reason is the name of the evaluation file and the question of it.
    """
    asked = {normalise(each): f"{name}: {each[:SHOWN_CHARS]}" for name, texts in evaluation.items() for each in texts}
    texts, names = list(asked), list(asked.values())
    index = Index(settings)
    for number, signature in enumerate(signatures(texts, settings, map_)):
        index.add(number, texts[number], signature)
    phrases = {phrase: number for number, text in enumerate(texts) for phrase in _phrases(text, settings.shared_words)}

    def reason(text: str, signature: np.ndarray) -> Reason:
        if text in asked:
            return EQUAL, asked[text]
        alike = next((number for number in index.candidates(signature) if index.alike(number, text)), None)
        if alike is not None:
            return NEAR, names[alike]
        shared = next((phrases[phrase] for phrase in _phrases(text, settings.shared_words) if phrase in phrases), None)
        return None if shared is None else (SHARED, names[shared])

    trained = [normalise(text) for text in questions["question"].to_pylist()]
    return marked(questions, [reason(*each) for each in zip(trained, signatures(trained, settings, map_), strict=True)])


def _phrases(text: str, words: int | None) -> list[tuple[str, ...]]:
    """All runs of so many words."""
    if words is None:
        return []
    found = _WORD.findall(text)
    return [tuple(found[start : start + words]) for start in range(len(found) - words + 1)]
