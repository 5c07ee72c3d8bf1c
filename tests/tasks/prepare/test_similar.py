"""Deduplication and decontamination."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.prepare.rows import kept
from nbrl.tasks.prepare.settings import DecontaminateSettings, DeduplicateSettings
from nbrl.tasks.prepare.similar import (
    DUPLICATE,
    EQUAL,
    NEAR,
    NEAR_DUPLICATE,
    RECALL,
    SHARED,
    bands,
    decontaminate,
    deduplicate,
    jaccard,
    normalise,
    shingles,
    signatures,
)
from tests.tasks.prepare.doubles import map_here, question, reasons, table

SENTENCE = "In which year did the harbour of the northern town lose its second lighthouse to the great storm"
WORDS = ["harbour", "lighthouse", "storm", "ledger", "captain", "island", "winter", "market", "violin", "copper"]


@given(st.permutations(range(12)), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_one_of_equal_questions_stays_whatever_the_order(order: list[int], texts: list[int]) -> None:
    """The texts share no n-gram, and equal ones differ in case, space and final punctuation."""
    rows = [
        question(f"a:{place}", (f" {WORDS[text] * 3}?", WORDS[text].upper() * 3)[place % 2], str(place))
        for place, text in enumerate(texts)
    ]
    marked = deduplicate(table(*(rows[place] for place in order)), ["a"], DeduplicateSettings(), map_here)
    stay = kept(marked).to_pylist()
    assert sorted(normalise(row["question"]) for row in stay) == sorted({WORDS[text] * 3 for text in texts})
    again = deduplicate(table(*rows), ["a"], DeduplicateSettings(), map_here)
    assert reasons(marked) == reasons(again)
    first = {text: min(f"a:{place}" for place, each in enumerate(texts) if each == text) for text in texts}
    assert {row["id"] for row in stay} == set(first.values())


@given(st.permutations(range(6)))
def test_of_near_duplicates_the_earlier_source_stays(order: list[int]) -> None:
    rows = [
        question(f"{name}:{n}", f"{SENTENCE}{mark}", "1892", source=name)
        for n, mark in enumerate(["?", "s?", ", now?"])
        for name in "ab"
    ]
    marked = deduplicate(table(*(rows[place] for place in order)), ["b", "a"], DeduplicateSettings(), map_here)
    assert kept(marked)["id"].to_pylist() == ["b:0"]
    assert reasons(marked) == {
        "a:0": (DUPLICATE, "b:0"),
        "b:1": (NEAR_DUPLICATE, "b:0"),
        "b:2": (NEAR_DUPLICATE, "b:0"),
        "a:1": (DUPLICATE, "b:0"),
        "a:2": (DUPLICATE, "b:0"),
    }


def test_near_questions_with_other_answers_are_two_questions() -> None:
    rows = table(
        question("a:1", "What is the capital of the ancient kingdom of Iran?", "Tehran"),
        question("a:2", "What is the capital of the ancient kingdom of Iraq?", "Baghdad"),
    )
    assert reasons(deduplicate(rows, ["a"], DeduplicateSettings(), map_here)) == {}
    assert reasons(deduplicate(rows, ["a"], DeduplicateSettings(same_answer=False), map_here)) == {"a:2": (NEAR_DUPLICATE, "a:1")}


def test_operators_are_no_punctuation() -> None:
    rows = table(question("a:1", "What is 3 + 4?", "7"), question("a:2", "What is 3 - 4?", "-1"))
    assert reasons(deduplicate(rows, ["a"], DeduplicateSettings(), map_here)) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SENTENCE.upper() + " ?!", EQUAL),
        (SENTENCE.replace("lose", "loose").replace("great ", "") + "?", NEAR),
        (
            "Tell me, if you please, and leave nothing out of all the old tales that you ever heard: "
            + " ".join(SENTENCE.split()[2:]),
            SHARED,
        ),
        ("Which town of the south has three lighthouses and no harbour", None),
    ],
)
def test_a_question_like_one_of_an_evaluation_file_goes(text: str, reason: str | None) -> None:
    evaluation = {"other": ["Who found the island?"], "held": [f"{SENTENCE}?"]}
    marked = decontaminate(table(question("a:1", text, "another answer")), evaluation, DecontaminateSettings(), map_here)
    assert reasons(marked) == ({} if reason is None else {"a:1": (reason, f"held: {SENTENCE}?")})


def test_without_shared_words_only_the_whole_question_counts() -> None:
    text = "Tell me, if you please, and leave nothing out of all the old tales that you ever heard: " + SENTENCE
    settings = DecontaminateSettings(shared_words=None)
    assert reasons(decontaminate(table(question("a:1", text)), {"held": [SENTENCE]}, settings, map_here)) == {}


@given(st.lists(st.sampled_from(WORDS), min_size=9, max_size=15, unique=False), st.randoms(use_true_random=False))
def test_a_small_edit_hides_no_evaluation_question(words: list[str], chance: random.Random) -> None:
    place = chance.randrange(len(words))
    edited = [*words[:place], words[place][:-1] + "x", *words[place + 1 :]]
    settings = DecontaminateSettings(threshold=0.6)
    alike = jaccard(shingles(" ".join(words), 5), shingles(" ".join(edited), 5)) >= 0.75
    marked = decontaminate(table(question("a:1", " ".join(edited))), {"e": [" ".join(words)]}, settings, map_here)
    assert not alike or len(kept(marked)) == 0


def test_no_evaluation_files_drop_nothing() -> None:
    assert reasons(decontaminate(table(question("a:1", SENTENCE)), {}, DecontaminateSettings(), map_here)) == {}


@given(st.floats(0.3, 1.0), st.integers(16, 512))
def test_bands_find_pairs_at_the_threshold(threshold: float, permutations: int) -> None:
    count, rows = bands(threshold, permutations)
    assert 1 <= count * rows <= permutations
    assert rows == 1 or 1 - (1 - threshold**rows) ** count >= RECALL


def test_a_threshold_of_one_leaves_only_equals_out() -> None:
    settings = DecontaminateSettings(threshold=1.0, shared_words=None)
    marked = decontaminate(
        table(question("a:1", SENTENCE), question("a:2", f"{SENTENCE} x")), {"e": [SENTENCE]}, settings, map_here
    )
    assert len(kept(marked)) == 1


def test_signatures_do_not_depend_on_blocks() -> None:
    texts = [f"text number {n}" for n in range(30)]
    settings = DeduplicateSettings(permutations=32)

    def by_sevens(tables: list[pa.Table], function: object, arguments: tuple[object, ...]) -> pa.Table:
        whole = pa.concat_tables(tables)
        return map_here([whole.slice(first, 7) for first in range(0, len(whole), 7)], function, arguments)  # type: ignore[arg-type]

    assert np.array_equal(signatures(texts, settings, map_here), signatures(texts, settings, by_sevens))  # type: ignore[arg-type]
    assert signatures([], settings, map_here).shape == (0, 32)
