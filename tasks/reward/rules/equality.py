"""Compares values of mathematics by math-verify and SymPy; runs in the confined program of scorer.py alone."""

from typing import Any

import sympy
from math_verify import verify

from nbrl.tasks.reward.rules.notation import Items

DIGITS, SAME = 60, 1e-40  # of values without a float
FLOAT, LEAST, NOISE = 5e-7, 2e-6, 1e-15  # floats are equal within FLOAT and LEAST of their value, or within NOISE of it


def same(wanted: Any, given: Any) -> bool:
    """Return whether two values are equal. Numbers are compared by value, all else by math-verify."""
    shares = [isinstance(each, Items) and each.around == "%" for each in (wanted, given)]
    if any(shares):  # 5% is 5 as well as 0.05
        numbers = [each.values[0] if share else each for each, share in zip((wanted, given), shares, strict=True)]
        return same(*numbers) or same(*(each / 100 if share else each for each, share in zip(numbers, shares, strict=True)))
    wanted, given = _vector(_alone(wanted), _alone(given)), _vector(_alone(given), _alone(wanted))
    if isinstance(wanted, Items) and isinstance(given, Items):
        return _same_items(wanted, given)
    wanted, given = _sides(_interval(wanted), _interval(given))
    if isinstance(wanted, Items) or isinstance(given, Items):
        return False
    if (near := same_number(wanted, given)) is not None:
        return near
    if any(isinstance(each, sympy.And | sympy.Or) for each in (wanted, given)):
        wanted, given = _numbers_that_fit(wanted), _numbers_that_fit(given)
    if isinstance(wanted, sympy.MatrixBase) and isinstance(given, sympy.MatrixBase):
        return wanted.shape == given.shape and all(map(same, wanted, given))
    return bool(verify([wanted], [given], float_rounding=12, timeout_seconds=None, allow_set_relation_comp=True))


def _alone(found: Any) -> Any:
    """Return the value of one item; of an interval without one closed and one open end what it is written like: two items."""
    if isinstance(found, sympy.Interval) and found.left_open == found.right_open:
        return Items("(" if found.left_open else "[", (found.start, found.end))
    return found.values[0] if isinstance(found, Items) and len(found.values) == 1 else found


def _vector(found: Any, other: Any) -> Any:
    """Return the numbers of a column or a row beside a tuple or a list: they are written as either."""
    is_vector = (
        isinstance(found, sympy.MatrixBase) and 1 in found.shape and isinstance(other, Items) and other.around in ("(", "[")
    )
    return Items(other.around, tuple(found)) if is_vector else found


def _sides(wanted: Any, given: Any) -> tuple[Any, Any]:
    """Return both; of an equation for a variable its right side, where the other is no relation."""
    for one, other in ((wanted, given), (given, wanted)):
        if (
            isinstance(one, sympy.Eq)
            and isinstance(one.lhs, sympy.Symbol)
            and not isinstance(other, sympy.core.relational.Relational)
        ):
            return (one.rhs, other) if one is wanted else (other, one.rhs)
    return wanted, given


def _numbers_that_fit(found: Any) -> Any:
    """Return the set of numbers that joined inequalities of one variable allow."""
    return found.as_set() if is_inequality(found) and len(found.free_symbols) == 1 else found


def _interval(found: Any) -> Any:
    """Return the interval that two numbers in brackets may also be."""
    if isinstance(found, Items) and found.around in ("(", "[") and len(found.values) == 2:
        ends = [each for each in found.values if isinstance(each, sympy.Expr) and each.is_extended_real]
        if len(ends) == 2:
            return sympy.Interval(*ends, found.around == "(", found.around == "(")
    return found


def _same_items(wanted: Items, given: Items) -> bool:
    """Return whether they are equal: in any order where the items are a set or without brackets, in the same order in a tuple."""
    around = {wanted.around, given.around}
    if len(wanted.values) != len(given.values) or around in ({"(", "["}, {"(", "{"}):
        return False
    if around == {"["} or "(" in around:
        return all(map(same, wanted.values, given.values))
    left = list(given.values)
    for one in wanted.values:
        if (match := next((place for place, other in enumerate(left) if same(one, other)), None)) is None:
            return False
        del left[match]
    return True


def same_number(wanted: Any, given: Any) -> bool | None:
    """Return whether two numbers are equal: exactly, or as far as a float says; None unless both are numbers."""
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


def is_inequality(found: Any) -> bool:
    """Return whether it is an inequality, or several that are joined."""
    return isinstance(found, sympy.logic.boolalg.Boolean) and not found.has(sympy.Eq)
