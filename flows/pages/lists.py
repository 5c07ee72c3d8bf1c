"""Lists of trajectories: the rows that were chosen, their order and their pages, and what there is to choose from."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode

from nbrl.flows.pages.reading import TrajectoryRow

T = TypeVar("T")
PER_PAGE = 100
RESULTS: dict[str, Callable[[TrajectoryRow], bool]] = {
    "right": lambda row: row.success is not None and row.success >= 1,
    "wrong": lambda row: row.success is not None and row.success < 1,
    "not scored": lambda row: row.success is None,
}
CHOICES: dict[str, Callable[[TrajectoryRow], str]] = {
    "environment": lambda row: kind_of(row),
    "status": lambda row: row.status,
    "result": lambda row: next(name for name, fits in RESULTS.items() if fits(row)),
}
COLUMNS: dict[str, Callable[[TrajectoryRow], str | float | None]] = {
    "trajectory": lambda row: row.id,
    "question": lambda row: row.question,
    "answer": lambda row: row.answer,
    "reference": lambda row: row.expected,
    "success": lambda row: row.success,
    "reward": lambda row: row.reward,
    "steps": lambda row: row.steps,
    "status": lambda row: row.status,
    "environment": lambda row: kind_of(row),
}


def kind_of(row: TrajectoryRow) -> str:
    """Return the environment and the ability of a trajectory."""
    return "/".join(part for part in (row.environment, row.ability) if part)


@dataclass(frozen=True)
class ChosenList:
    """What of a list is shown. `order` is a column, after a minus from the highest value down; empty is as asked for."""

    environment: str = ""
    status: str = ""
    result: str = ""
    text: str = ""
    order: str = ""
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ChosenList":
        """Return what a query chooses. Unknown keys and orders and pages that are no number count as not given."""
        order = query.get("order", "")
        return cls(
            **{name: query.get(name, "") for name in (*CHOICES, "text")},
            order=order if order.removeprefix("-") in COLUMNS else "",
            page=page_in(query),
        )

    def query(self, **changes: str | int) -> str:
        """Return it as the query of an address, with changes."""
        given = {name: getattr(self, name) for name in (*CHOICES, "text", "order", "page")} | changes
        kept = {name: value for name, value in given.items() if value and (name, value) != ("page", 1)}
        return f"?{urlencode(kept)}" if kept else ""

    def by(self, column: str) -> str:
        """Return the query that sorts by a column; the other way round if it is sorted by that."""
        return self.query(order=f"-{column}" if self.order == column else column, page=1)

    def rows(self, rows: Sequence[TrajectoryRow]) -> list[TrajectoryRow]:
        """Return the chosen rows, in their order. What has no value comes last."""
        text = self.text.lower()
        found = [
            row
            for row in rows
            if all(getattr(self, name) in ("", value(row)) for name, value in CHOICES.items())
            and (not text or any(text in part.lower() for part in (row.id, row.question, row.answer or "", row.expected)))
        ]
        if self.order:
            value = COLUMNS[self.order.removeprefix("-")]
            known = [row for row in found if value(row) is not None]
            known.sort(key=lambda row: value(row), reverse=self.order.startswith("-"))  # type: ignore[arg-type,return-value]
            found = [*known, *(row for row in found if value(row) is None)]
        return found


def page_in(query: Mapping[str, str]) -> int:
    """Return the number of the page that a query asks for; 1 if it is none."""
    number = query.get("page", "")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 8 and int(number) else 1


def of_page(rows: Sequence[T], page: int) -> Sequence[T]:
    """Return the rows of a page, which are counted from 1."""
    return rows[(page - 1) * PER_PAGE : page * PER_PAGE]


def pages_of(rows: Sequence[object]) -> int:
    return max(1, -(-len(rows) // PER_PAGE))


def choices(rows: Sequence[TrajectoryRow]) -> dict[str, list[tuple[str, int]]]:
    """Return the values that there are of each filter, with the number of their rows."""
    return {name: sorted(Counter(map(value, rows)).items()) for name, value in CHOICES.items()}


class ListPlace(NamedTuple):
    """The place of a trajectory in a list of so many, from 1, and the ids beside it; 0 and empty where there is none."""

    number: int
    of: int
    before: str
    after: str


def place_in(rows: Sequence[TrajectoryRow], identity: str) -> ListPlace:
    """Return where a list has a trajectory. In one that lacks it, the first of the list comes next."""
    ids = list(dict.fromkeys(row.id for row in rows))
    if identity not in ids:
        return ListPlace(0, len(ids), "", ids[0] if ids else "")
    place = ids.index(identity)
    return ListPlace(place + 1, len(ids), ids[place - 1] if place else "", ids[place + 1] if place + 1 < len(ids) else "")
