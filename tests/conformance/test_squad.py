"""Exact match and F1 are those of SQuAD's official script (version 1.1), whose values stand here."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.reward.rules.qa import exact_match, f1, normalise


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "overlap"),
    [
        ("U.S.", "US", 1, 1),
        ("1,000", "1000", 1, 1),
        ("Jay-Z", "JayZ", 1, 1),
        ("Jay-Z", "Jay Z", 0, 0),
        ("O'Brien", "OBrien", 1, 1),
        ("The  Hello, World!", "hello world", 1, 1),
        ("the United States of America", "United States", 0, 2 / 3),
        ("$3.5 million", "3.5 million", 1, 1),
        ("3.5", "35", 1, 1),
        ("A cat and the dog", "cat and dog", 1, 1),
        ("Marie Curie 1867-1934", "Marie Curie", 0, 0.8),
        ("an apple a day", "apple day", 1, 1),
        ("theatre", "the atre", 0, 0),
        ("rock'n'roll", "rock n roll", 0, 0),
        ("New\nYork", "New York", 1, 1),
        ("Beyoncé", "Beyonce", 0, 0),
        ("a.m.", "am", 1, 1),
        ("well-known author", "well known author", 0, 0.4),
        ("Catch-22", "catch 22", 0, 0),
        ("AC/DC", "ACDC", 1, 1),
        ("St. John's", "st johns", 1, 1),
        ("x_y", "xy", 1, 1),
        ("the-end", "end", 0, 0),
        ("the a an", "x", 0, 0),
    ],
)
def test_scores_are_those_of_the_official_script(answer: str, reference: str, exact: float, overlap: float) -> None:
    assert exact_match(answer, [reference]) == exact
    assert f1(answer, [reference]) == pytest.approx(overlap)


def official(text: str) -> list[str]:
    """The words that the official rule leaves of an ASCII text, said another way than the code says it."""
    kept = text.lower().translate(dict.fromkeys(map(ord, string.punctuation)))
    return [word for word in kept.split() if word not in ("a", "an", "the")]


WORDS = st.lists(
    st.sampled_from(["the", "a", "An", "U.S.", "us", "Jay-Z", "1,000", "(x)", "--", "o'a", "thea", "42", "\t"]), max_size=6
)


@given(WORDS.map(" ".join) | st.text(string.ascii_letters + string.digits + " .,-'$%\n", max_size=20))
def test_ascii_text_of_which_a_word_is_left_is_normalised_by_the_official_rule(text: str) -> None:
    if official(text):
        assert normalise(text).split() == official(text)


@given(st.text(max_size=20))
def test_normalising_leaves_something_of_every_text_and_a_text_equals_itself(text: str) -> None:
    assert bool(normalise(text)) == bool(text.split())
    assert exact_match(text, [text]) == 1.0
    assert f1(text, [text]) == 1.0


@pytest.mark.parametrize(
    ("answer", "reference", "exact"),
    [
        ("北京", "上海", 0),
        ("北京", "北京。", 1),
        ("「北京」", "北京", 1),
        ("¿Qué?", "qué", 1),
        ("1867–1934", "18671934", 1),  # a dash that is not ASCII is deleted as one that is
        ("«Мир»", "мир", 1),
        ("الجزيرة؟", "الجزيرة", 1),
        ("Beyonce\u0301", "Beyonc\u00e9", 1),  # one letter, spelt in two ways
        ("Ω", "π", 0),
    ],
)
def test_every_script_has_its_punctuation_deleted_and_nothing_else(answer: str, reference: str, exact: float) -> None:
    assert exact_match(answer, [reference]) == exact


@pytest.mark.parametrize(
    ("answer", "reference", "exact"), [("The The", "the the!", 1), ("The The", "A", 0), ("?!", "...", 0), ("A.", "a", 1)]
)
def test_what_would_leave_nothing_is_not_deleted(answer: str, reference: str, exact: float) -> None:
    assert exact_match(answer, [reference]) == exact
