"""How answers are compared with references, by the rule of the question."""

from collections import Counter

import pytest

from nbrl.tasks.environments.kinds.gym_battery import battery
from nbrl.tasks.reward.rules import choice, gaia, number, qa
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.rules.rule import NO_ANSWERS, RULES, judge, readable

ANSWERED = [rule for rule in RULES if rule not in NO_ANSWERS]


LONG = 1_000_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["9" * LONG, "9e" + "9" * LONG, "1/" * LONG, "1," * LONG, "1 " * LONG, " " * LONG + "xy", "9" + "m²" * LONG]
)
def test_a_text_of_any_length_is_read_in_the_end(text: str) -> None:
    assert number.quantity(text) is None
    assert choice.option(text) is None


@pytest.mark.timeout(60)
def test_a_row_of_combining_characters_of_any_length_is_read_in_the_end() -> None:
    assert qa.exact_match("a" + "\u0301" * LONG + "\u0327" * LONG, ["a"]) == 0.0
    assert qa.exact_match("a\u0301\u0327", ["a\u0327\u0301"]) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "B",
            "b",
            "(B)",
            "[b]",
            "B.",
            "B)",
            "B: Paris",
            "B) the second",
            "Option B",
            "Answer: B",
            "**B**",
            "B - Paris",
            "B — Paris",
        ),
        *(
            r"\boxed{B}",
            r"$\boxed{\text{B}}$",
            "$B$",
            "The answer is B",
            "The correct answer is (B).",
            "Final answer: B",
            "choice b",
            '"B"',
            "The answer is option B.",
            "So the answer is (B)",
            "Therefore, the answer is B",
            "Option B is correct.",
            "B is the correct answer.",
            "Answer: **B**",
            "**Answer**: B",
            "B (Paris)",
            "B. O(N)",
            "B) P(A) = 0.5",
            "B. E(X)",
            "B) (I) only",
            "B. (I) and (II)",
            "I choose B",
            "B\nBecause it is.",
            "Answer: B\nExplanation: the others are wrong.",
            "B because of the tides",
            "It is B.",
            "The answer would be B",
            "#### B",
            r"\boxed{(B)\ 5}",
            r"\textbf{(B)}\ 5",
            "('B',)",
            "{'B'}",
        ),
        *(
            "B. D. melanogaster",
            "B) Vitamin C.",
            "B) f(x) = 2",
            "B) A plan",
            "B: x",
            "B) Hepatitis B",
            "B. It's A-level",
            "B. I think",
        ),
    ],
)
def test_an_option_is_its_letter(answer: str) -> None:
    assert choice.equal(answer, ["A", "B"]) == 1.0
    assert choice.equal(answer, ["C"]) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "A dog",
            "Paris",
            "",
            "AB",
            "A or B",
            "1",
            "I think B",
            "A) or B)",
            "A) and C)",
            "A, B",
            "A/B",
            "(A) (B)",
            "A. B.",
            "A | B",
        ),
        *(
            "A) x, or B) y",
            "A; B",
            "A) / C)",
            "A: or B",
            "A. Or maybe B) y",
            "A)B)",
            r"\boxed{A, B}",
            r"\boxed{A} \boxed{B}",
            "A. not B",
            "A is wrong",
            "A\nor (B)",
            "A\nNo, the answer is B",
            "A because B",
            "A (B)",
            "A. x (B)",
            "The answer is A or option B",
            "A is the first and B the second",
        ),
    ],
)
def test_what_names_no_single_option_is_wrong(answer: str) -> None:
    assert choice.equal(answer, ["A", "B", "I", "P"]) == 0.0


@pytest.mark.parametrize(
    ("answer", "reference", "worth"),
    [
        ("$1,234", "1234", 1.0),
        ("17%", "17", 1.0),
        ("17.0", "17", 1.0),
        ("17 words", "17", 0.0),
        ("-3", "3", 0.0),
        ("nan", "3", 0.0),
        ("Sea gull.", "seagull", 1.0),
        ("St. Petersburg", "St Petersburg", 1.0),
        ("gull", "seagull", 0.0),
        ("Plum,  b; 3.0", "plum, B, 3", 1.0),
        ("b, plum", "plum, b", 0.0),
        ("plum", "plum, b", 0.0),
        ("plum, b, c", "plum, b", 0.0),
        ("p.lum, b", "plum, b", 0.0),
        ("NaN", "nan", 1.0),
        ("Infinity", "inf", 0.0),
        ("-", "?!", 0.0),
        ("?!", "?!", 1.0),
    ],
)
def test_answers_of_gaia_are_numbers_lists_or_texts_as_the_reference_is(answer: str, reference: str, worth: float) -> None:
    assert gaia.equal(answer, ["another", reference]) == worth


def judged(rule: str, answer: str | None, *answers: str) -> Judged:
    (found,) = judge([{"answer": answer, "answers": answers, "rule": rule, "reference": ""}])
    return found


def test_the_rule_of_the_question_decides_and_no_answer_is_wrong() -> None:
    assert judged("qa", "-4", "4") == Judged(1.0, 1.0)  # a sign is punctuation in SQuAD's rule
    assert judged("number", "-4", "4") == Judged(0.0, 0.0)
    assert judged("qa", "the red barn", "red house") == Judged(0.0, 0.5)
    assert judged("choice", "(a)", "A") == Judged(1.0, 1.0)
    assert {judged(rule, answer, "4")[:2] for rule in ANSWERED for answer in (None, " ")} == {(0.0, 0.0)}
    assert [readable(rule, "four") for rule in ("qa", "number", "choice", "math", "judge")] == [True, False, False, True, True]
    assert readable("gaia", "nan")


REFERENCES = {
    "qa": ["Ada Lovelace", "the red barn", "1844", "北京", "in the year 7"],
    "number": ["42", "-7.5", "3/8", "4 million", "30%", "5 km", "$2.50"],
    "choice": ["A", "B", "C", "D", "E"],
    "gaia": ["17", "plum, b, 3", "Sea gull", "nan", "?!"],
    "math": ["42", r"\frac{3}{8}", r"3\sqrt{5}", "x^2-1", "(7, 8)", r"\text{Monday}", r"\$18.90"],
}


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[pytest.mark.sandbox, pytest.mark.more] if rule == "math" else []) for rule in REFERENCES]
)
def test_no_answer_that_does_not_depend_on_the_question_is_right_on_several(rule: str) -> None:
    """Those of the battery for tasks of a package: constants, the question itself, the answer to another one."""
    entries = [{"question": f"What is no. {place}?", "answer": each} for place, each in enumerate(REFERENCES[rule])]
    rows = [
        {"answer": text, "answers": [entry["answer"]], "rule": rule, "reference": "", "of": name}
        for name, given in battery(entries).items()
        for text, entry in zip(given, entries, strict=True)
        if text.strip() != entry["answer"]
    ]
    right = Counter(row["of"] for row, judged in zip(rows, judge(rows), strict=True) if judged.exact)
    assert all(count < 2 for count in right.values()), right
