"""How answers are compared with references, by the rule of the question."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.environments.kinds.gym_battery import battery
from nbrl.tasks.reward.rules import choice, gaia, number, qa
from nbrl.tasks.reward.rules.rule import NO_ANSWERS, RULES, Judged, judge, readable

ANSWERED = [rule for rule in RULES if rule not in NO_ANSWERS]


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("6.0", "6"),
        ("1,000", "1000"),
        ("1 000", "1000"),
        ("-4", "−4"),
        ("+4", "4"),
        ("1/2", "0.5"),
        (".5", "0.50"),
        ("1e3", "1000"),
        ("$42", "42"),
        ("-$42", "-42"),
        ("$-42", "-42"),
        ("42 dollars", "42"),
        ("42.", "42"),
        ("**42**", "42"),
        ("3.9", "3.9 m"),
        ("3.9 m", "3.9 m."),
        ("50 %", "50%"),
        ("４２", "42"),
        ("25 cm²", "25"),
        ("25 cm²", "25 cm2"),
        ("25cm^2", "25 cm²"),
        ("9.81 m/s²", "9.81 m/s2"),
        ("3 m s⁻¹", "3 m s^-1"),
        ("1e3 m2", "1000 m²"),
        ("5 g H2O", "5"),
        ("4 million", "4,000,000"),
        ("$2.5bn", "2500000000"),
        ("2.5M USD", "$2.5 million"),
        ("9k", "9000"),
        ("3 dozen", "36"),
        ("4万", "40000"),
        ("30 percent", "30%"),
        ("30 per cent of all", "30 %"),
        ("8‰", "0.8%"),
        ("½", "0.5"),
        ("2½", "2.5"),
        ("-2 1/2", "-2.5"),
        ("60 miles per hour", "60"),
        ("300 K", "300"),
        ("5 N*m", "5"),
        ("90°", "90"),
        ("$5", "5 dollars"),
        ("€1.5m", "1500000 euros"),
        ("5 cents", "5¢"),
        ("4 and a half", "4.5"),
        ("10^3", "1000"),
        ("1.2 × 10^6", "1200000"),
        ("3×10⁻⁴ m", "0.0003"),
        ("5 grand", "5000"),
        ("4 억", "400000000"),
        ("30 Prozent", "30%"),
        ("5 months", "5"),
    ],
)
def test_numbers_of_one_value_are_equal(answer: str, reference: str) -> None:
    assert number.equal(answer, [reference]) == number.equal(reference, [answer]) == 1.0


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("-4", "4"),
        ("3.5", "3 5"),
        ("3.5", "35"),
        ("1/2", "1-2"),
        ("2+3", "5"),
        ("4 or 5", "4"),
        ("4, 5", "4"),
        ("50%", "50"),
        ("50%", "0.5"),
        ("3 km", "3 m"),
        ("1/0", "1"),
        ("--4", "-4"),
        ("-$-4", "4"),
        ("1,00", "100"),
        ("four", "4"),
        ("", "0"),
        ("4 because that is what remains of it", "4"),
        ("1e999", "1"),
        ("nan", "nan"),
        ("x = 4", "4"),
        ("10²", "102"),
        ("10²", "100"),
        ("10²", "10"),
        ("1 ²³⁴", "1234"),
        ("10⁻²", "10"),
        ("10ⁿ", "10"),
        ("10₂", "102"),
        ("25 cm²", "25 cm³"),
        ("3 m²", "3 m⁻²"),
        ("3 m s⁻¹", "3 m s"),
        ("1e9999", "1"),
        ("1 e5", "1"),
        ("2x5", "2"),
        ("2x²", "2"),
        ("5y-3", "5"),
        ("5 km 3", "5"),
        ("3 m12", "3"),
        ("4", "4 million"),
        ("$2.5 billion", "$2.5"),
        ("$9K", "9"),
        ("9K", "9"),
        ("4 M people", "4"),
        ("4 (million)", "4"),
        ("$4 in millions", "4"),
        ("$4MM", "4"),
        ("4 Millionen", "4"),
        ("4 миллиона", "4"),
        ("4 zillion", "4"),
        ("4λ", "4"),
        ("4 deaths per million", "4"),
        ("3 quarters", "3"),
        ("2 and a half", "2"),
        ("4 hundred and five", "400"),
        ("30% of all", "30"),
        ("16%%", "16"),
        ("5 percentage points", "5%"),
        ("16π", "16"),
        ("2 pi rad", "2"),
        ("7i", "7"),
        ("6x", "6"),
        ("6ab", "6"),
        ("4!", "4"),
        ("5*pi", "5"),
        ("3 squared", "3"),
        ("4 or five", "4"),
        ("5 MW", "5 mW"),
        ("1 234/567", "1.5"),
        ("$5", "5 cents"),
        ("€5", "$5"),
        ("4", "4 and a half"),
        ("10", "10^3"),
        ("3", "3 × 10^8"),
        ("4", "4 doz."),
        ("4", "4 sixteenths"),
        ("4", "4 млн"),
        ("4", "4 juta"),
        ("4", "4 millones"),
        ("4", "4 miliony"),
        ("4", "4 pour cent"),
        ("4 not", "4"),
    ],
)
def test_other_numbers_and_what_is_no_number_are_not_equal(answer: str, reference: str) -> None:
    assert number.equal(answer, [reference]) == 0.0


@given(value=st.fractions())
def test_a_fraction_equals_itself_and_not_its_opposite(value: Fraction) -> None:
    text = f"{value.numerator}/{value.denominator}"
    if len(text) <= number.DIGITS:
        assert number.quantity(text) == number.Quantity(value)
        assert number.equal(text, [f"{-value.numerator}/{value.denominator}"]) == float(value == 0)


RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉"


@given(value=st.integers(-(10**9), 10**9), raised=st.text(RAISED, min_size=1, max_size=5), space=st.sampled_from(["", " ", "  "]))
def test_a_number_with_raised_digits_is_none(value: int, raised: str, space: str) -> None:
    assert number.quantity(f"{value}{space}{raised}") is None


@given(
    value=st.integers(-(10**9), 10**9),
    letters=st.sampled_from(["m", "cm", "k", "kg", "s", "mol", "ft", "K", "rad", "MW"]),
    power=st.sampled_from(RAISED),
)
def test_a_power_of_a_unit_does_not_change_the_value(value: int, letters: str, power: str) -> None:
    found = number.quantity(f"{value} {letters}{power}")
    assert found is not None
    assert found.value == value
    assert number.equal(f"{value} {letters}{power}", [str(value)]) == 1.0


FACTORS = [
    "hundred",
    "thousand",
    "Million",
    "billions",
    "dozen",
    "bn",
    "k",
    "percent",
    "‰",
    "half",
    "quarters",
    "π",
    "i",
    "!",
    "x",
]


@given(
    value=st.integers(1, 10**9),
    factor=st.sampled_from(FACTORS),
    space=st.sampled_from(["", " ", " - "]),
    unit=st.sampled_from(["", " people"]),
)
def test_what_multiplies_a_number_cannot_be_left_out(value: int, factor: str, space: str, unit: str) -> None:
    whole = f"{value}{space}{factor}{unit}"
    assert number.equal(str(value), [whole]) == number.equal(whole, [str(value)]) == 0.0


@given(text=st.text(st.sampled_from("0123456789.,/-+−eExms²³⁻^ ")) | st.text())
def test_any_text_is_a_number_with_a_unit_or_none(text: str) -> None:
    found = number.quantity(text)
    assert found is None or isinstance(found.value, Fraction)
    assert number.equal(text, [text]) == float(found is not None)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        *(
            ("5 theta", "5"),
            ("5 sigma", "5"),
            ("4 tens", "4"),
            ("3 scores", "3"),
            ("2 pairs", "2"),
            ("5 mega", "5"),
            ("5 nano", "5"),
        ),
        *(
            ("101 in binary", "101"),
            ("5 (negative)", "5"),
            ("5 ms", "5 m/s"),
            ("5 MB", "5 Mb"),
            ("5 nm", "5 Nm"),
            ("5 Pa", "5 pA"),
        ),
        *(
            ("5 kWh", "5 kW/h"),
            ("I doubt it is 5", "5"),
            ("the wrong answer is 5", "5"),
            ("it cannot be 5", "5"),
            ("0.3", "0.30000001"),
        ),
    ],
)
def test_what_makes_another_value_or_unit_is_not_equal(answer: str, reference: str) -> None:
    assert number.equal(answer, [reference]) == number.equal(reference, [answer]) == 0.0


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        *(
            ("US$42", "$42"),
            ("USD 42", "$42"),
            ("₹5", "5 rupees"),
            ("5 kilometers", "5 km"),
            ("5 hours", "5 hour"),
            ("(42)", "42"),
        ),
        *(
            ("5 metres", "5 meters"),
            ("[42]", "42"),
            ("1_000", "1000"),
            (r"\boxed{42}", "42"),
            ("$42$", "42"),
            ("5 km/h", "5 km / h"),
        ),
        *(("The answer is 42", "42"), ("So the total is $5.", "$5"), ("0.30000000000000004", "0.3"), ("£3.50", "3.5 pounds")),
        *(("33.333333333333336", "33.33333333333333"), ("2.0000000000000004", "2")),
    ],
)
def test_another_way_of_writing_is_equal(answer: str, reference: str) -> None:
    assert number.equal(answer, [reference]) == number.equal(reference, [answer]) == 1.0


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
