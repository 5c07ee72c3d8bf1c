"""The rule `math`: values of LaTeX, of what Python prints and of numbers with units."""

import pytest

from nbrl.tasks.reward.rules import confined
from nbrl.tasks.reward.rules.rule import judge

Case = tuple[str, str, float]

# Decided without a process: numbers with units, and texts that are the same.
NUMBERS: list[Case] = [
    ("1,000", "1000", 1.0),
    ("1½", "1.5", 1.0),
    ("18.90", r"\$18.90", 1.0),
    ("$18.90", r"\$18.90", 1.0),
    (r"\$18.90", "18.9", 1.0),
    ("1250", r"\$1,\!250", 1.0),
    ("3 cm", r"3\text{ cm}", 1.0),
    ("90", r"90^\circ", 1.0),
    ("so it is 4", "4", 1.0),
    ("The answer is 5 apples", r"\boxed{5}", 1.0),
    (r"\forall x<0, g(x)=1", r"\forall x<0, g(x)=1", 1.0),
    ("3 cm", "3 km", 0.0),
    ("9 million", "9", 0.0),
    (r"4\text{ dozen}", "4", 0.0),
    ("-4", "4", 0.0),
    ("5", "4", 0.0),
]
EXPRESSIONS: list[Case] = [
    ("1/2", r"\frac{1}{2}", 1.0),
    (r"$\frac{2}{4}$", "0.5", 1.0),
    (r"\sqrt{8}", r"2\sqrt{2}", 1.0),
    ("(1,2)", "(1, 2)", 1.0),
    ("x^2+2x+1", "(x+1)^2", 1.0),
    ("3*sqrt(5)", r"3\sqrt{5}", 1.0),
    ("2 sqrt(3)", r"2\sqrt{3}", 1.0),
    ("2√3", r"2\sqrt{3}", 1.0),
    ("x**3 - 1", "x^3-1", 1.0),
    ("2*x*y", "2xy", 1.0),
    ("1e-07", "10^{-7}", 1.0),
    ("1 + 2*I", "1+2i", 1.0),
    ("log(3)", r"\ln 3", 1.0),
    ("-oo", r"-\infty", 1.0),
    ("(1, pi/4)", r"(1, \frac{\pi}{4})", 1.0),
    ("Matrix([[1, 0], [0, 1]])", r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", 1.0),
    ("Rational(3, 4)", r"\frac34", 1.0),
    ("3.9999999999999996", "4", 1.0),
    ("0.333333", r"\frac13", 1.0),
    ("1e+20", "10^{20}", 1.0),
    ("x = 3 or x = 4", r"x=3 \text{ or } x=4", 1.0),
    ("Monday", r"\text{Monday}", 1.0),
    ("9 million", r"9\cdot10^6", 1.0),
    ("It is 3*sqrt(5).", r"3\sqrt{5}", 1.0),
    ("2+2=4", "4", 1.0),
    ("101_2", "101_{2}", 1.0),
    ("7", "7", 1.0),
    ("6", "6y^2", 0.0),
    ("6*y**2", "6y^2", 1.0),
    ("3", "3(a-b)", 0.0),
    ("3*(a - b)", "3(a-b)", 1.0),
    ("9", "9a^2b", 0.0),
    ("4", "4 ab", 0.0),
    ("2", "2f(a)", 0.0),
    ("3", "3 sec a", 0.0),
    ("1000000", "10⁶", 1.0),
    ("10", "10⁶", 0.0),
    ("1/5", "5⁻¹", 1.0),
    ("5", "5⁻¹", 0.0),
    ("x^4", "x⁴", 1.0),
    ("2", "2ⁿ", 0.0),
    ("2pi", r"2\pi", 1.0),
    (">= 4", "4", 0.0),
    ("5 // 2", "2", 0.0),
    ("3*sqrt(5)", "3", 0.0),
    (r"6\sqrt(3)", "6", 0.0),
    ("5, 8, and 90", "7, 6, and 90", 0.0),
    ("7 or 8", "8", 0.0),
    (r"7 \text{ or } 8", "8", 0.0),
    ("answer: 7 or 8", "8", 0.0),
    ("half of 8", "8", 0.0),
    ("not 4", "4", 0.0),
    ("5=4", "4", 0.0),
    ("6x", "6", 0.0),
    ("101_2", "101", 0.0),
    ("g(x)=1", r"\forall x<0, g(x)=1", 0.0),
    (r"\frac{1}{2^{70}}", r"\frac{1}{2^{71}}", 0.0),
    ("0.0000003", "0.0000001", 0.0),
    ("(0.0000003, 1)", "(0.0000001, 1)", 0.0),
    ("0.000333333", "0.000333", 0.0),
    ("1000001.0", "1000000", 0.0),
    (r"\sqrt{8}", "8", 0.0),
    ("9**9**9**9", "4", 0.0),
    ("zzz", "4", 0.0),
]


def exact(cases: list[Case]) -> list[float]:
    asked = [{"answer": answer, "answers": ["no", wanted], "rule": "math", "reference": ""} for answer, wanted, _ in cases]
    return [judged.exact for judged in judge(asked)]


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_with_units_are_compared_without_a_process(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "compare", lambda rule, asked, modules=(): [{"score": 0.0} for _ in asked])
    assert exact([case]) == [case[2]]


@pytest.mark.more
@pytest.mark.sandbox
def test_mathematics_is_compared_by_value() -> None:
    found = exact(EXPRESSIONS)
    assert [case for case, score in zip(EXPRESSIONS, found, strict=True) if score != case[2]] == []
