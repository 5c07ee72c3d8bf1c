"""filter: drops questions by their ratings and by their pass rate."""

from typing import Any

import pyarrow as pa

from nbrl.tasks.prepare.rows import Reason, marked
from nbrl.tasks.prepare.settings import FilterSettings


def by_ratings(questions: pa.Table, settings: FilterSettings) -> pa.Table:
    """The questions, marked; `questions` has the columns that `rate` adds."""

    def reason(objectivity: int, stability: int) -> Reason:
        if objectivity < settings.min_objectivity:
            return "not objective enough", f"objectivity {objectivity}"
        if stability < settings.min_stability:
            return "not stable enough", f"stability {stability}"
        return None

    return marked(questions, [reason(*each) for each in _rows(questions, "objectivity", "stability")])


def by_pass_rate(questions: pa.Table, settings: FilterSettings) -> pa.Table:
    """The questions, marked; `questions` has the column that `difficulty` adds."""

    def reason(rate: float) -> Reason:
        if rate < settings.min_pass_rate:
            return "too hard", f"pass rate {rate:.3g}"
        return ("too easy", f"pass rate {rate:.3g}") if rate > settings.max_pass_rate else None

    return marked(questions, [reason(*each) for each in _rows(questions, "pass_rate")])


def _rows(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))
