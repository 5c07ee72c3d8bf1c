"""Reads expressions of mathematics as Python, NumPy and SymPy print them; runs in the confined program of scorer.py alone."""

import ast
import re
from typing import Any, NamedTuple

import sympy

CONSTANTS = {
    "pi": sympy.pi, "e": sympy.E, "E": sympy.E, "I": sympy.I, "i": sympy.I, "oo": sympy.oo, "inf": sympy.oo,
    "EmptySet": sympy.EmptySet, "Reals": sympy.S.Reals, "Integers": sympy.S.Integers,
}  # fmt: skip
_NAMES = (
    "sqrt cbrt root exp log ln sin cos tan sec csc cot asin acos atan asec acsc acot sinh cosh tanh asinh acosh atanh Abs floor "
    "ceiling factorial binomial gcd lcm re im conjugate arg gamma Rational Matrix FiniteSet Tuple Interval Union Intersection Eq "
    "Ne Lt Le Gt Ge Min Max"
)
FUNCTIONS = {
    **{name: getattr(sympy, name) for name in _NAMES.split()},
    "abs": sympy.Abs, "ceil": sympy.ceiling, "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan,
    "comb": sympy.binomial, "Fraction": sympy.Rational, "Integer": sympy.Integer, "ImmutableDenseMatrix": sympy.Matrix,
    "log2": lambda x: sympy.log(x, 2), "log10": lambda x: sympy.log(x, 10), "pow": lambda x, n: x**n,
    "min": sympy.Min, "max": sympy.Max, "StrictLessThan": sympy.Lt, "StrictGreaterThan": sympy.Gt,
    "Equality": sympy.Eq, "And": sympy.And, "Or": sympy.Or, "C": sympy.binomial,
}  # fmt: skip
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa mu nu xi rho sigma tau upsilon phi chi psi omega lambda"
NAMES = _GREEK.split()
STAND_IN = "g_{987}"  # of the variable gamma in LaTeX
OPERATIONS = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b, ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b, ast.BitAnd: sympy.And, ast.BitOr: sympy.Or,
}  # fmt: skip
RELATIONS = {ast.Eq: sympy.Eq, ast.NotEq: sympy.Ne, ast.Lt: sympy.Lt, ast.LtE: sympy.Le, ast.Gt: sympy.Gt, ast.GtE: sympy.Ge}
# What Python writes and LaTeX does not.
_PYTHON = re.compile(
    rf"\*|\d[eE][+-]?\d|(?<!\\)\b(?:{'|'.join([*FUNCTIONS, 'pi', 'oo', 'I', 'Reals', 'EmptySet'])})\b"
    r"|\[\s*-?\d[\d.]*\s+-?[\d.]|\)\s*[&|]\s*\(|\bnp\.|\bnumpy\.|\bmpf\b|\barray\(|\[\s*\[|\dj\b"
)
EQUATION = re.compile(r"(?<![=<>!:])=(?!=)(?![^(]*\))")  # y = x**2, but for what has a name in a call
LAMBDA = "lamda"  # lambda is a word of Python
# An array as NumPy prints it, and the signs between its numbers and its rows.
PRINTED = re.compile(r"\[[\[\]\d.\seE+j-]*\d[\d.\]\s]*\]")
ARRAY = re.compile(r"\s*(\])\s*\[|(?<=[\d.j])\s+(?=[-+.\d])")
_NUMBER_TYPES = re.compile(r"(?:u?int|float|complex)\d*_?|mpf|Float")
_VARIABLE = re.compile(r"([A-Za-z])(?:_?(\d+))?")


class Items(NamedTuple):
    """Several values, and what is around them: `(`, `[`, `{`, or nothing, as in "7, 8"."""

    around: str
    values: tuple[Any, ...]


def from_python(text: str) -> Any:
    """Return the value of the text in Python; None if it is no Python, or no mathematics."""
    if "\\" in text or not _PYTHON.search(text):
        return None
    try:
        text = EQUATION.sub("==", re.sub(r"\blambda\b", LAMBDA, text.strip().replace("^", "**")))
        text = ARRAY.sub(lambda found: "," if found[1] is None else "],[", text) if PRINTED.fullmatch(text) else text
        return _made(ast.parse(text, mode="eval").body, text)
    except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError, ArithmeticError):
        return None


def variable(name: str) -> Any:
    """Return the symbol of a variable, with which math-verify's are replaced too."""
    return sympy.Symbol("gamma" if name == STAND_IN else name, real=True)


def _made(node: ast.expr, text: str) -> Any:
    """Return the value of an expression of Python. Raises ValueError for anything that is not of mathematics."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(value)):
            return sympy.Integer(value)
        case ast.Constant(value=float()):
            return sympy.Float(ast.get_source_segment(text, node))
        case ast.Constant(value=complex() as value):
            return (sympy.Integer(int(value.imag)) if value.imag.is_integer() else sympy.Float(value.imag)) * sympy.I
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.Name(id=name) if name in NAMES or name == LAMBDA:
            return variable(name if name != LAMBDA else "lambda")
        case ast.Name(id=name) if found := _VARIABLE.fullmatch(name):
            return variable(found[1] + (f"_{found[2]}" if found[2] else ""))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_made(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _made(operand, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_made(left, text), _made(right, text))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in RELATIONS:
            return RELATIONS[type(op)](_made(left, text), _made(right, text))
        case ast.Call(func=func, args=args, keywords=keywords):
            return _called(func, args, keywords, text)
        case ast.Attribute(value=ast.Name(id="S" | "sympy"), attr=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.Attribute(value=ast.Name(id="math" | "np" | "numpy" | "sympy"), attr="pi" | "e" | "inf" as name):
            return CONSTANTS[name]
        case ast.List(elts=[ast.List(), *_] as rows) if all(isinstance(row, ast.List) for row in rows):
            return sympy.Matrix([[_made(each, text) for each in row.elts] for row in rows])  # type: ignore[attr-defined]
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            around = {ast.Tuple: "(", ast.List: "[", ast.Set: "{"}[type(node)]
            bare = isinstance(node, ast.Tuple) and not text.strip().startswith("(")
            return Items("" if bare else around, tuple(_made(each, text) for each in items))
    raise ValueError(f"{type(node).__name__} is not of mathematics")


def _called(func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword], text: str) -> Any:
    """Return the value of a function of mathematics, or of a number that is written with its type."""
    match func:
        case ast.Attribute(value=ast.Name(id="Interval"), attr="open" | "Lopen" | "Ropen" as kind):
            return getattr(sympy.Interval, kind)(*(_made(each, text) for each in args))
        case (
            ast.Name(id=name)
            | ast.Attribute(value=ast.Name(id="np" | "numpy" | "math" | "sympy" | "mpmath" | "cmath"), attr=name)
        ):
            pass
        case _:
            raise ValueError("a call of something else")
    if name in ("array", "asarray"):
        return _made(args[0], text)
    if keywords:
        raise ValueError("a call with names")
    if _NUMBER_TYPES.fullmatch(name) and len(args) == 1:
        (only,) = args
        if isinstance(only, ast.Constant) and isinstance(only.value, str):
            return sympy.Float(only.value)
        return _made(only, text)
    if name == "set" and len(args) == 1:
        return Items("{", _made(args[0], text).values)
    if name not in FUNCTIONS:
        raise ValueError(f"{name} is no function of mathematics")
    if name in ("Matrix", "ImmutableDenseMatrix"):
        given = _made(args[0], text)
        return sympy.Matrix(given.values) if isinstance(given, Items) else given
    values = [_made(each, text) for each in args]
    if name in ("FiniteSet", "Tuple"):
        return Items("{" if name == "FiniteSet" else "(", tuple(values))
    if name in ("sqrt", "log", "exp", "Rational", "Fraction", "Min", "Max", "min", "max"):
        values = list(values[0].values) if len(values) == 1 and isinstance(values[0], Items) else values
    return FUNCTIONS[name](*values)
