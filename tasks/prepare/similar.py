"""Questions that are alike: found by their words, and left out where they repeat each other or those of a benchmark."""

import re
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from datasketch import LeanMinHash, MinHash, MinHashLSH

from nbrl.tasks.prepare.rows import Map, Reason, blocks, marked
from nbrl.tasks.prepare.settings import DecontaminateSettings, DeduplicateSettings, SimilaritySettings
from nbrl.tasks.reward.rules import qa

SEED, SCHEME = 1, "affine32"  # of the permutations; signatures of others cannot be compared with these
RECALL = 0.99
_SPACE, _EDGE = re.compile(r"\s+"), " \t?!.,;:'\"‘’“”…"
STAGE = "decontaminate"
EQUAL, NEAR, SHARED = "equals an evaluation question", "near an evaluation question", "shares words with an evaluation question"
SHOWN_CHARS = 120
_WORD = re.compile(r"\w+")
DUPLICATE, NEAR_DUPLICATE = "duplicate", "near duplicate"


def normalise(question: str) -> str:
    """Return the text in lowercase with single spaces, without punctuation at both ends.

    Punctuation within stays: 3 + 4 is not 3 - 4.
    """
    return _SPACE.sub(" ", unicodedata.normalize("NFC", question).casefold()).strip(_EDGE)


def shingles(text: str, ngram: int) -> frozenset[str]:
    """Return the character n-grams of a text; the text itself if it is shorter."""
    return frozenset(text[start : start + ngram] for start in range(max(1, len(text) - ngram + 1)))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the size of the intersection over size of the union (Broder 1997, "resemblance")."""
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)


def sign(table: pa.Table, ngram: int, permutations: int) -> pa.Table:
    """Return the MinHash of each text of the column `text`, as the column `signature`: `permutations` numbers. For a Ray task."""
    sets = [sorted(gram.encode() for gram in shingles(text, ngram)) for text in table["text"].to_pylist()]
    hashes = MinHash.generator(sets, num_perm=permutations, seed=SEED, scheme=SCHEME)
    values = np.concatenate([np.empty(0, np.uint32), *(each.hashvalues for each in hashes)])
    return pa.table({"signature": pa.FixedSizeListArray.from_arrays(pa.array(values, pa.uint32()), permutations)})


def signatures(texts: Sequence[str], settings: SimilaritySettings, map_: Map) -> np.ndarray:
    """Return the MinHashes of normalised texts, [texts, permutations] uint32."""
    table = pa.table({"text": pa.array(texts, pa.string())})
    signed = map_(blocks(table), sign, (settings.ngram, settings.permutations))
    flat = signed["signature"].combine_chunks().flatten() if len(signed) else pa.array([], pa.uint32())
    return flat.to_numpy(zero_copy_only=False).reshape(len(texts), settings.permutations)


class SimilarityIndex:
    """Texts by number, among which those like another are found."""

    def __init__(self, settings: SimilaritySettings) -> None:
        self._settings = settings
        self._lsh = MinHashLSH(num_perm=settings.permutations, params=bands(settings.threshold, settings.permutations))
        self._texts: dict[int, str] = {}

    def add(self, number: int, text: str, signature: np.ndarray) -> None:
        self._texts[number] = text
        self._lsh.insert(number, _lean(signature))

    def candidates(self, signature: np.ndarray) -> list[int]:
        """Return the numbers of texts that may be alike, smallest first."""
        return sorted(self._lsh.query(_lean(signature)))

    def alike(self, number: int, text: str) -> bool:
        """Return whether the exact similarity of a text of the index and another reaches the threshold."""
        mine, other = shingles(self._texts[number], self._settings.ngram), shingles(text, self._settings.ngram)
        return jaccard(mine, other) >= self._settings.threshold


def bands(threshold: float, permutations: int) -> tuple[int, int]:
    """Return the number of bands and rows of a band, with as many rows as let LSH find a pair at the threshold with probability
    RECALL.

    A pair of similarity s becomes a candidate with probability 1 - (1 - s^rows)^bands (Leskovec et al., Mining of Massive
    Datasets, 3.4.2); what is found wrongly costs one exact comparison.
    """
    most = permutations // 2  # datasketch makes two bands at least
    rows = max((rows for rows in range(1, most + 1) if 1 - (1 - threshold**rows) ** (permutations // rows) >= RECALL), default=1)
    return permutations // rows, rows


def _lean(signature: np.ndarray) -> LeanMinHash:
    return LeanMinHash(seed=SEED, hashvalues=signature, scheme=SCHEME)


def decontaminate(
    questions: pa.Table, evaluation: Mapping[str, Sequence[str]], settings: DecontaminateSettings, map_: Map
) -> pa.Table:
    """Return the questions, marked; `evaluation` has the questions of each evaluation file by its name.

    The detail of a reason is the name of the evaluation file and the question of it.
    """
    by_text = {normalise(each): f"{name}: {each[:SHOWN_CHARS]}" for name, texts in evaluation.items() for each in texts}
    texts, names = list(by_text), list(by_text.values())
    index = SimilarityIndex(settings)
    for number, signature in enumerate(signatures(texts, settings, map_)):
        index.add(number, texts[number], signature)
    phrases = {phrase: number for number, text in enumerate(texts) for phrase in _phrases(text, settings.shared_words)}

    def reason(text: str, signature: np.ndarray) -> Reason:
        if text in by_text:
            return EQUAL, by_text[text]
        alike = next((number for number in index.candidates(signature) if index.alike(number, text)), None)
        if alike is not None:
            return NEAR, names[alike]
        shared = next((phrases[phrase] for phrase in _phrases(text, settings.shared_words) if phrase in phrases), None)
        return None if shared is None else (SHARED, names[shared])

    trained = [normalise(text) for text in questions["question"].to_pylist()]
    return marked(questions, [reason(*each) for each in zip(trained, signatures(trained, settings, map_), strict=True)])


def _phrases(text: str, words: int | None) -> list[tuple[str, ...]]:
    """Return all runs of so many words."""
    if words is None:
        return []
    found = _WORD.findall(text)
    return [tuple(found[start : start + words]) for start in range(len(found) - words + 1)]


def deduplicate(questions: pa.Table, sources: Sequence[str], settings: DeduplicateSettings, map_: Map) -> pa.Table:
    """Return the questions, marked; the detail of a reason is the id of the question that stays in its place.

    Of two the one of the earlier source stays, or of the smaller id. So the order of the rows decides nothing, and each dropped
    question is like one that stays.
    """
    rows = questions.select(["id", "question", "answers", "source"]).to_pylist()
    texts = [normalise(row["question"]) for row in rows]
    signed = signatures(texts, settings, map_)
    ranks = {name: rank for rank, name in enumerate(sources)}
    order = sorted(range(len(rows)), key=lambda place: (ranks[rows[place]["source"]], rows[place]["id"]))
    words = [{qa.normalise(answer) for answer in row["answers"]} for row in rows]
    reasons: list[Reason] = [None] * len(rows)
    stays: dict[str, int] = {}  # the row that stays for each normalised text
    index = SimilarityIndex(settings)  # of the rows that stay, by their number in `order`
    for number, place in enumerate(order):
        text = texts[place]
        if text in stays:
            reasons[place] = (DUPLICATE, rows[stays[text]]["id"])
            continue
        for near in index.candidates(signed[place]):
            if (not settings.same_answer or words[order[near]] & words[place]) and index.alike(near, text):
                reasons[place] = (NEAR_DUPLICATE, rows[order[near]]["id"])
                stays[text] = order[near]
                break
        else:
            stays[text] = place
            index.add(number, text, signed[place])
    return marked(questions, reasons)
