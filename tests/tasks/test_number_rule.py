"""Numbers are compared by value: how they are written, what multiplies them, and which units may be left out."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.reward.rules import number


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("6.0", "6"),
        ("1,000", "1000"),
        ("**Answer:** 5", "5"),
        ("**Answer**: 5", "5"),
        ("**Final Answer:** $18", "18"),
        ("x = 5", "5"),
        ("= 5", "5"),
        ("Total = 5", "5"),
        ("Total: 5", "5"),
        ("Total: $5", "5"),
        ("9*2 = 18", "18"),
        ("5 days a week", "5"),
        ("$5 a day", "5"),
        ("5 cups a day", "5"),
        ("2125 sq ft", "2125"),
        ("5 sq m", "5"),
        ("5 cu ft", "5"),
        ("6 pm", "6"),
        ("5 hp", "5"),
        ("5 us dollars", "5"),
        ("2 × 3 + 1 = 7", "7"),
        ("(3+4)/2 = 3.5", "3.5"),
        ("10 - 3 = 7 apples", "7"),
        ("x = 4", "4"),
        (r"The answer is **42**.", "42"),
        (r"**42**.", "42"),
        (r"\(42\)", "42"),
        (r"\[42\]", "42"),
        (r"$$42$$", "42"),
        (r"\boxed{42}.", "42"),
        (r"The final answer is $\boxed{42}$.", "42"),
        (r"\boxed{42 \text{ miles}}", "42"),
        (r"\$42", "42"),
        (r"42\%", "42%"),
        (r"#### 18", "18"),
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
        ("9*2 = 19", "19"),
        ("not: 5", "5"),
        ("wrong = 5", "5"),
        ("5a", "5"),
        ("5 a", "5"),
        ("twice x = 5", "5"),
        ("-x = 5", "5"),
        ("ratio 1:5", "5"),
        ("4:5", "5"),
        ("12:05", "5"),
        ("error: 5", "5"),
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
