"""Reads expressions of mathematics by math-verify and SymPy; runs in the confined program of scorer.py alone.

An expression is LaTeX, or what Python and SymPy print (notation.py), in any way of writing (written.py). A text is read as a
whole or not at all, for a part of it may have any value; math-verify by itself takes what it can read and leaves out the rest.
"""

import re
from collections import Counter
from functools import partial
from typing import Any

import math_verify.parser
import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import parse

from nbrl.tasks.reward.rules.equality import is_inequality, same, same_number
from nbrl.tasks.reward.rules.notation import FUNCTIONS, Items, from_python, variable
from nbrl.tasks.reward.rules.written import LISTED, NEAR, NUMBER, bare, in_short, listed, plain, unit, without_unit

# A capital is another variable than its small letter.
math_verify.parser.latex2sympy = partial(latex2sympy, conversion_config=ConversionConfig(lowercase_symbols=False))
MOST_TOKENS = 200  # of an expression
MOST_DOUBTED = 24  # of its tokens, each of which costs a further reading
MOST_LETTERS = 3  # of a product of variables, such as xyz
BASED = re.compile(r"\d_\{?\d|(?<![A-Za-z\\])[0-9A-Fa-f]{2,}_\{?\d")  # a number and its base
# Of logic, of congruences, a relation without its left side, whole division, transposition: math-verify skips them.
SKIPPED = re.compile(
    r"^\\(?:[gl]e|ne)(?:q|qslant)?\b|^[<>≤≥≠]|//|\\(?:n?exists|forall|implies|iff|[A-Za-z]*arrow|mapsto|to|equiv|[pb]?mod|n?mid|neg|land|lor|setminus)\b|\^\s*\{?\s*(?:T\b|\*|\\(?:top|prime|ast|dagger|star)\b)"
)
# What is no sign of an expression, or an operation without its second part.
BROKEN = re.compile(
    r"[~'\"`?#@;]|[+\-*/^_=<>:,&]\s*$|^\s*[*/^_=:,&]|\d\s+\d"
    r"|\\(?:pm|mp|cdot|times|div|[gl]eq?|[gl]t|neq?|approx|sum|prod|int|sqrt|frac|binom|cup|cap|in|setminus)\s*$"
    r"|\\(?:sum|prod|int|lim)(?!\s*(?:\\limits\s*)?_)"
)
JOINED_BY_OR, JOINED_BY_AND = (re.compile(rf"\s*,?\s*(?:\\text\s*\{{\s*{word}\s*\}}|\b{word}\b)\s*") for word in ("or", "and"))
MEMBER = re.compile(r"[A-Za-z]\s*\\in\s*(?=[\[({\\])(.+)", re.DOTALL)
ROUNDED = 0.01  # how far what is behind a sign of approximation may be from what is before it
TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|textrm|operatorname)\s*\{[^{}]*\}")
SHARE = re.compile(r"(.*\S)\s*\\?%", re.DOTALL)
APART = re.compile(r"(?<![A-Za-z\\])(?<!begin\{)(?<!end\{)[^\W\d_]{2,}")  # letters that are no command and no environment
TOKEN = re.compile(rf"\\(?:begin|end)\{{[a-z]+\}}|\\[A-Za-z]+|{NUMBER.pattern}|[A-Za-z]")
_COMMANDS = "sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh log ln exp max min gcd"
# Commands without a value of their own.
_QUIET = "cdot times lvert rvert vert circ lbrace rbrace cup in"


def equal(answer: str, references: list[str]) -> bool:
    """Return whether the answer has the value of a reference."""
    given = Text(answer)
    return any(given.equals(Text(reference)) for reference in references)


class Text:
    """An answer or a reference, and the value that it is; None if it is not wholly one."""

    def __init__(self, text: str) -> None:
        self.bare = bare(text)
        self.value, self.unit = value(self.bare), unit(self.bare)

    def equals(self, other: "Text") -> bool:
        if self.value is None and other.value is None:
            return bool(self.bare) and plain(self.bare) == plain(other.bare)
        if self.value is None or other.value is None or (self.unit and other.unit and self.unit != other.unit):
            return False
        # Letters in another case are the same variables, unless a value has both cases of one.
        told_apart = [len({name.lower() for name in names}) < len(names) for names in map(_names, (self.value, other.value))]
        return same(*((other.value, self.value) if any(told_apart) else (_small(other.value), _small(self.value))))


def _names(found: Any) -> set[str]:
    if isinstance(found, Items):
        return {name for each in found.values for name in _names(each)}
    return {each.name for each in getattr(found, "free_symbols", ())}


def _small(found: Any) -> Any:
    """Return the value with its variables in small letters."""
    if isinstance(found, Items):
        return Items(found.around, tuple(map(_small, found.values)))
    symbols = getattr(found, "free_symbols", None)
    return found.xreplace({each: variable(each.name.lower()) for each in symbols}) if symbols else found


def value(text: str) -> Any:
    """Return the expression that the whole text is, or the items that it lists; None if it is neither."""
    text = without_unit(text)
    if BASED.search(text) or SKIPPED.search(text):
        return None
    if (percent := from_python(text)) is not None:
        return percent
    if member := MEMBER.fullmatch(text):
        return value(member[1])
    if (near := NEAR.split(text)) and len(near) == 2 and all(map(str.strip, near)):
        exact, rounded = map(value, near)
        if all(isinstance(each, sympy.Expr) and each.is_number for each in (exact, rounded)):
            return exact if abs(sympy.N(exact - rounded)) <= ROUNDED * abs(sympy.N(exact)) else None
    if share := SHARE.fullmatch(text):
        percent = value(share[1])
        return Items("%", (percent,)) if isinstance(percent, sympy.Expr) else None
    text = in_short(text)
    if text.count(r"\pm") == 1:
        values = tuple(value(text.replace(r"\pm", sign)) for sign in "+-")
        return None if None in values else Items("", values)
    if alternatives := _alternatives(text):
        return alternatives
    if NUMBER.search(text):
        text = LISTED.sub(", ", text)
    around, parts = listed(text)
    if len(parts) == 1:
        return expression(text) if around != "{" else value(parts[0])
    values = tuple(value(part.strip()) for part in parts)
    return None if None in values else Items(around, values)


def _alternatives(text: str) -> Any:
    """Return the set of "x < 1 or x > 2" or "x > 1 and x < 2"; None unless all parts are inequalities."""
    for joined, connective in ((JOINED_BY_OR, sympy.Or), (JOINED_BY_AND, sympy.And)):
        parts = joined.split(text)
        if len(parts) > 1:
            values = [value(part.strip()) for part in parts]
            return connective(*values) if all(is_inequality(each) for each in values) else None
    return None


def expression(text: str) -> Any:
    """Return the expression that the whole text is, or None."""
    words = APART.findall(text)
    if TEXT.search(text) or BROKEN.search(text) or any(len(each) > MOST_LETTERS and each not in FUNCTIONS for each in words):
        return None
    # Variables beside each other are a product.
    text = APART.sub(lambda found: _apart(found[0], r"\int" in text), text)
    found = _read(text)
    if found is None or not _wholly_read(text, found):
        return None
    return with_symbols(settled(found))


def _apart(letters: str, integral: bool) -> str:
    """Return a function of LaTeX's, a differential, or a product of variables."""
    if letters in _COMMANDS.split():
        return f"\\{letters} "
    return letters if letters in FUNCTIONS or (integral and letters[0] == "d") else r" \cdot ".join(letters)


def _read(text: str) -> Any:
    """Return math-verify's value of the text; None if there is none."""
    read = parse(f"${text}$", parsing_timeout=None)
    return None if not read or isinstance(read[0], str) else read[0]


def _wholly_read(text: str, found: Any) -> bool:
    """Return whether every number, letter and command of the text is in the expression, or changes it where it is another one."""
    tokens = list(TOKEN.finditer(text))
    if len(tokens) > MOST_TOKENS:
        return False
    left = _leaves(found)
    doubted = []
    for token in tokens:
        name = token[0].lstrip("\\").lower() if token[0][0] not in ".0123456789" else f"{float(token[0]):g}"
        if left[name]:
            left[name] -= 1
        elif not (token[0].startswith("\\") and (name in _QUIET.split() or "{" in name)):
            doubted.append(token)
    if len(doubted) > MOST_DOUBTED:
        return False
    return all(_read(text[: each.start()] + _other(each[0], text) + text[each.end() :]) != found for each in doubted)


def _leaves(found: Any) -> Counter[str]:
    """Return how often each number, letter and function is in an expression."""
    leaves: Counter[str] = Counter()
    for node in sympy.preorder_traversal(found):
        if isinstance(node, sympy.Rational):
            leaves.update(f"{abs(number):g}" for number in {int(node.p), int(node.q)} if abs(number) < 1e15)
        elif isinstance(node, sympy.Float):
            leaves[f"{abs(float(node)):g}"] += 1
        elif isinstance(node, sympy.Symbol):
            leaves.update([node.name.lower(), *re.findall(r"[A-Za-z]|\d+", node.name.lower())])
        elif isinstance(node, sympy.core.numbers.NumberSymbol | sympy.core.numbers.ImaginaryUnit):
            leaves[{"Pi": "pi", "Exp1": "e", "ImaginaryUnit": "i"}.get(type(node).__name__, "")] += 1
        elif isinstance(node, sympy.Function):
            leaves[type(node).__name__.lower()] += 1
    return leaves


def _other(token: str, text: str) -> str:
    """Return a replacement of a number, a letter or a command."""
    if token.startswith("\\"):
        return " "
    if token.isalpha():
        return next(letter for letter in "qwzkjbcdfghlmnoprstuvyxa" if letter not in text)
    return token[:-1] + str((int(token[-1]) + 3) % 10 or 1)


def settled(found: Any) -> Any:
    """Return the value that an equation states: 2 + 2 = 4 that it is 4, x = 2 + 3 = 5 that x = 5, x in a set the set; None if
    false.
    """
    if isinstance(found, sympy.Eq) and isinstance(found.rhs, sympy.Set):
        return found.rhs
    if not isinstance(found, sympy.Eq | sympy.And):
        return found
    parts = list(found.args) if isinstance(found, sympy.And) else [found]
    if not all(isinstance(each, sympy.Eq) for each in parts):
        return found
    sides = [side for each in parts for side in each.args]
    unknown = [side for side in sides if side.free_symbols]
    known = [side for side in sides if not side.free_symbols]
    if not known or (unknown and len(parts) == 1):
        return found
    if not all(same_number(known[0], side) for side in known[1:]):
        return None
    return sympy.Eq(unknown[0], known[-1], evaluate=False) if unknown else known[-1]


def with_symbols(found: Any) -> Any:
    """Return the value with symbols of one kind, whatever assumptions math-verify has made; a lone i is the imaginary unit."""
    symbols: set[Any] = getattr(found, "free_symbols", set())
    alone = {each.name for each in symbols} == {"i"}
    return found.xreplace({each: sympy.I if alone else variable(each.name) for each in symbols}) if symbols else found
