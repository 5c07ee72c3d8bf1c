"""Reads and compares expressions of mathematics by math-verify and SymPy; runs in the confined program of scorer.py alone.

An expression is LaTeX, or what Python and SymPy print. A text is read as a whole or not at all, for a part of it may have any
value; math-verify by itself takes the first part that it can read.
"""

import ast
import re
import unicodedata
from typing import Any

import sympy
from math_verify import parse, verify

DIGITS, SAME = 60, 1e-40  # of values without a float
FLOAT, LEAST, NOISE = 5e-7, 2e-6, 1e-15  # floats are equal within FLOAT and LEAST of their value, or within NOISE of it
CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "E": sympy.E, "I": sympy.I, "i": sympy.I, "oo": sympy.oo, "inf": sympy.oo}
FUNCTIONS = {
    **{name: getattr(sympy, name) for name in ("sqrt", "cbrt", "exp", "log", "ln", "sin", "cos", "tan", "asin", "acos", "atan")},
    **{name: getattr(sympy, name) for name in ("sinh", "cosh", "tanh", "Abs", "factorial", "binomial", "Rational", "Matrix")},
    "abs": sympy.Abs, "Fraction": sympy.Rational, "Integer": sympy.Integer, "ImmutableDenseMatrix": sympy.Matrix,
    "FiniteSet": sympy.FiniteSet, "Tuple": sympy.Tuple,
}  # fmt: skip
OPERATIONS = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b, ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}  # fmt: skip
# What Python writes and LaTeX does not.
PYTHON = re.compile(rf"\*|\d[eE][+-]?\d|(?<!\\)\b(?:{'|'.join([*FUNCTIONS, 'pi', 'oo', 'I'])})\b")
BASED = re.compile(r"[0-9A-Fa-f]_\{?\d")  # a number and its base
# Of logic, of congruences, a relation without its left side, whole division: math-verify skips them.
SKIPPED = re.compile(
    r"^\\(?:[gl]e|ne)(?:q|qslant)?\b|^[<>≤≥≠]|//|\\(?:n?exists|forall|implies|iff|[A-Za-z]*arrow|mapsto|to|equiv|[pb]?mod|n?mid|neg|land|lor)\b"
)
MARKED = re.compile(r"(?<!\\)\$+([^$]+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}")
WORD = re.compile(r"(?<!\\)(?<![A-Za-z\\])[^\W\d_]{2,}")
LISTED = re.compile(r"\s*,?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<!\\)\b(?:and|or)\b)\s*")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SIGNS = str.maketrans({
    "∞": r"\infty ", "π": r"\pi ", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "−": "-", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "°": r"^\circ ",
})  # fmt: skip
RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁽⁾ⁱⁿ]+")
LOWERED = re.compile("[₀-₉₊₋₍₎]+")
ROOT = re.compile(r"(?:√|\\?(?<![A-Za-z])sqrt)\s*(?:\(([^()]*)\)|(?<=√)(\w))")
PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
VULGAR = re.compile("[¼-¾⅐-⅞]")
MOST_LETTERS = 3  # of a product of variables, such as xyz


def equal(answer: str, references: list[str]) -> bool:
    """Whether the answer has the value of a reference."""
    given = Text(answer)
    return any(given.equals(Text(reference)) for reference in references)


class Text:
    """An answer or a reference, and the expression that it is; None if it is not wholly one."""

    def __init__(self, text: str) -> None:
        self.bare = bare(text)
        self.expression = expression(self.bare)

    def equals(self, other: "Text") -> bool:
        if self.expression is None or other.expression is None:
            return bool(self.bare) and plain(self.bare) == plain(other.bare)
        return same(other.expression, self.expression)


def bare(text: str) -> str:
    """The expression without what marks it, or the only one that a sentence marks."""
    text = text.strip().strip("*`").strip()
    text = re.sub(r"\\\$", "", text)
    if boxes := list(BOXED.finditer(text)):
        return bare(braced(text[boxes[0].end() :])) if len(boxes) == 1 else text
    marked = list(MARKED.finditer(text))
    if len(marked) == 1:
        outside = text[: marked[0].start()] + text[marked[0].end() :]
        inside = next(each for each in marked[0].groups() if each)
        return inside.strip() if not NUMBER.search(outside) else text
    if text.count("$") == 1:  # of a currency
        text = text.replace("$", "")
    text = VULGAR.sub(lambda found: "\\frac{" + unicodedata.normalize("NFKC", found[0]).replace("⁄", "}{") + "}", text)
    text = re.sub(r"^([+-]?\d+)\s+(\d+)\s*/\s*(\d+)$", r"\1\\frac{\2}{\3}", text)
    text = RAISED.sub(lambda found: f"^{_grouped(found[0])}", text)
    text = LOWERED.sub(lambda found: f"_{_grouped(found[0])}", text)
    return text.translate(SIGNS).rstrip(".").strip()


def _grouped(digits: str) -> str:
    """Raised or lowered digits as a group of ordinary ones."""
    return "{" + unicodedata.normalize("NFKC", digits).replace("−", "-") + "}"


def braced(text: str) -> str:
    """What stands before the brace that closes."""
    depth = 1
    for place, each in enumerate(text):
        depth += (each == "{") - (each == "}")
        if depth == 0:
            return text[:place]
    return text


def plain(text: str) -> str:
    """The text without what changes no meaning."""
    text = re.sub(r"\\(?:left|right|text|mathrm|[,;:! ])|[\s{}$]", "", text).casefold()
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def expression(text: str) -> Any:
    """The expression that the whole text is, or None."""
    if BASED.search(text) or SKIPPED.search(text):
        return None
    if "\\" not in text and PYTHON.search(text):
        try:
            return made(ast.parse(text.strip(), mode="eval").body, text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, ArithmeticError):
            pass
    text = PI.sub(r"\\pi ", text)
    text = ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", text)
    if NUMBER.search(text):
        text = LISTED.sub(", ", text)
    words = WORD.findall(TEXT.sub("", text))
    if TEXT.fullmatch(text) or any(len(word) > MOST_LETTERS and word not in FUNCTIONS for word in words):
        return None
    read = parse(f"${text}$", parsing_timeout=None) or parse(text, parsing_timeout=None)
    if not read or isinstance(read[0], str):
        return None
    numbers = NUMBER.findall(text)
    if (
        isinstance(read[0], sympy.Integer)
        and len(numbers) > 1
        and str(abs(read[0])) in numbers
        and not re.search("frac|/|binom", text)
    ):
        return None  # a part of it alone
    said = str(read[0])
    if any(letter not in said for word in words if word not in FUNCTIONS for letter in word.replace("i", "").replace("e", "")):
        return None  # without a variable of it
    return with_symbols(settled(read[0]))


def settled(found: Any) -> Any:
    """What an equation between numbers says, as 2 + 2 = 4 says 4; None if it is false."""
    if not isinstance(found, sympy.Eq | sympy.And) or found.free_symbols:
        return found
    sides = [side for each in (found.args if isinstance(found, sympy.And) else [found]) for side in each.args]
    return sides[-1] if all(same_number(sides[0], side) for side in sides[1:]) else None


def with_symbols(found: Any) -> Any:
    """With symbols of one kind, whatever assumptions math-verify has made; i is the imaginary unit where no other symbol is."""
    symbols: set[Any] = getattr(found, "free_symbols", set())
    alone = {each.name for each in symbols} == {"i"}
    return (
        found.xreplace({each: sympy.I if alone else sympy.Symbol(each.name, real=True) for each in symbols}) if symbols else found
    )


def made(node: ast.expr, text: str) -> Any:
    """What an expression of Python is. Raises ValueError for anything that is not of mathematics."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(value)):
            return sympy.Integer(value)
        case ast.Constant(value=float()):
            return sympy.Float(ast.get_source_segment(text, node))
        case ast.Constant(value=complex() as value):
            return sympy.Float(value.imag) * sympy.I
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.Name(id=name) if len(name) == 1:
            return with_symbols(parse(f"${name}$", parsing_timeout=None)[0])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -made(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return made(operand, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](made(left, text), made(right, text))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(made(each, text) for each in args))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return sympy.Tuple(*(made(each, text) for each in items))
        case ast.Set(elts=items):
            return sympy.FiniteSet(*(made(each, text) for each in items))
    raise ValueError(f"{type(node).__name__} is not of mathematics")


def same(wanted: Any, given: Any) -> bool:
    """Whether two expressions are equal. Where both are numbers, their values decide; else math-verify and, inside, the same."""
    if (near := same_number(wanted, given)) is not None:
        return near
    if (
        isinstance(wanted, sympy.Tuple | sympy.MatrixBase)
        and isinstance(given, type(wanted))
        and not isinstance(wanted, sympy.Set)
    ):
        shapes = [each.shape if isinstance(each, sympy.MatrixBase) else len(each) for each in (wanted, given)]
        return shapes[0] == shapes[1] and all(same(one, other) for one, other in zip(wanted, given, strict=True))
    if isinstance(wanted, sympy.FiniteSet) and isinstance(given, sympy.FiniteSet):
        left = list(given)
        for one in wanted:
            if (found := next((place for place, other in enumerate(left) if same(one, other)), None)) is None:
                return False
            del left[found]
        return not left
    return bool(verify([wanted], [given], float_rounding=12, timeout_seconds=None))


def same_number(wanted: Any, given: Any) -> bool | None:
    """Whether two numbers are equal: exactly, or as far as a float says; None unless both are numbers."""
    if not all(
        isinstance(each, sympy.Expr) and each.is_number and not each.has(sympy.UnevaluatedExpr) for each in (wanted, given)
    ):
        return None
    floats = wanted.has(sympy.Float) or given.has(sympy.Float)
    one, other = wanted.doit().evalf(DIGITS), given.doit().evalf(DIGITS)
    if not (one.is_finite and other.is_finite):
        return bool(one == other)
    size, off = max(abs(one), abs(other)), abs(one - other)
    if not (size.is_Float or size.is_Integer) or not (off.is_Float or off.is_Integer):
        return None
    return bool(off <= size * SAME or (floats and off <= max(min(FLOAT, LEAST * size), NOISE * size)))
