"""A shop's SQLite database behind `query(sql)`: questions that need writes, scored by the tables that result.

`{kind: own, place: "nbrl.tasks.environments.worlds.database:Database"}`
"""

import random
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, Literal

from nbrl.tasks.own import Question, Score, Session, Trajectory, World, WorldRefuses, tool

THINGS = ("lamp", "mug", "chair", "radio", "kettle", "clock", "sofa", "vase")
NAMES = ("Ada", "Ben", "Eva", "Ida", "Leo", "Tom")
TABLES = (
    "create table things (name text primary key, price integer, stock integer)",
    "create table orders (number integer primary key, customer text, thing text, count integer, paid integer)",
)
HELD_OUT = 1 << 20
ROWS, COLUMNS, CELL_CHARS, PAGES, VALUE_BYTES = 50, 50, 200, 256, 1_000
# A statement may take so many instructions of SQLite, the same on every machine; the seconds are for those that take long.
INSTRUCTIONS, LOOKS, QUERY_S = 10_000, 20, 5.0
READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
# Not the same at every call, or on every machine.
OTHERWISE = ("random", "date", "time", "julianday", "strftime", "unixepoch", "current_", "sqlite_")
WRITES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
DUMPS = ("select * from things order by name", "select * from orders order by number")


def filled(seed: int) -> sqlite3.Connection:
    """Return a new database with things and orders that are drawn from the seed."""
    rng = random.Random(f"database {seed}")
    made = sqlite3.connect(":memory:", isolation_level=None)
    for table in TABLES:
        made.execute(table)
    things = rng.sample(THINGS, 6)
    made.executemany("insert into things values (?, ?, ?)", [(name, rng.randint(5, 90), rng.randint(0, 40)) for name in things])
    orders = [(100 + n, rng.choice(NAMES), rng.choice(things), rng.randint(1, 5), rng.randint(0, 1)) for n in range(20)]
    made.executemany("insert into orders values (?, ?, ?, ?, ?)", orders)
    return made


def wanted(seed: int) -> tuple[str, str]:
    """Return a task in words, and the statement that does it."""
    rng = random.Random(f"task {seed}")
    with closing(filled(seed)) as made:
        things = [name for (name,) in made.execute("select name from things order by name")]
        names = [name for (name,) in made.execute("select distinct customer from orders order by customer")]
    while True:
        thing, name, number = rng.choice(things), rng.choice(names), rng.randint(2, 9)
        task = rng.choice(_tasks(thing, name, number))
        with closing(filled(seed)) as made:
            before = dumped(made)
            made.execute(task[1])
            if dumped(made) != before:
                return task


def _tasks(thing: str, name: str, number: int) -> list[tuple[str, str]]:
    return [
        (f"Raise the price of the {thing} by {number}.", f"update things set price = price + {number} where name = '{thing}'"),
        (f"Delete all orders of {name}.", f"delete from orders where customer = '{name}'"),
        (f"Mark every order of the {thing} as paid.", f"update orders set paid = 1 where thing = '{thing}'"),
        (
            f"{name} orders {number} of the {thing}, not paid yet; the number is one above the highest.",
            f"insert into orders select max(number) + 1, '{name}', '{thing}', {number}, 0 from orders",
        ),
        (
            "Set the stock of every thing that has an unpaid order to 0.",
            "update things set stock = 0 where name in (select thing from orders where paid = 0)",
        ),
    ]


def dumped(made: sqlite3.Connection) -> list[Any]:
    """Return all rows of all tables."""
    return [[list(row) for row in made.execute(dump)] for dump in DUMPS]


class Copy(Session):
    """One copy of the database. Statements are a model's: they reach nothing but the tables, and end in time."""

    def __init__(self, seed: int, task: str) -> None:
        self._made, self._queries = filled(seed), 0
        with closing(filled(seed)) as other:
            other.execute(task)
            self._wanted = dumped(other)
        self._made.execute(f"pragma max_page_count = {PAGES}")
        self._made.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        self._made.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, COLUMNS)
        self._made.set_authorizer(_allowed)
        self._looks, self._until = 0, 0.0
        self._made.set_progress_handler(self._too_long, INSTRUCTIONS)

    def observe(self) -> str:
        return "Tables: things (name, price, stock); orders (number, customer, thing, count, paid: 0 or 1)."

    @tool
    def query(self, sql: str) -> list[list[Any]]:
        """Run one SQL statement of SQLite and return its rows, at most 50.

        Args:
            sql: select, insert, update or delete
        """
        self._queries += 1
        self._begin()
        try:
            with closing(self._made.execute(sql)) as cursor:
                rows = cursor.fetchmany(ROWS)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError, ValueError) as error:
            raise WorldRefuses(f"SQLite: {error}") from None
        return [[_shown(cell) for cell in row] for row in rows]

    def outcome(self) -> Any:
        self._begin()
        try:
            return {"right": dumped(self._made) == self._wanted, "queries": self._queries}
        except sqlite3.Error:
            return {"right": False, "queries": self._queries}

    def close(self) -> None:
        self._made.close()

    def _begin(self) -> None:
        self._looks, self._until = 0, time.monotonic() + QUERY_S

    def _too_long(self) -> bool:
        self._looks += 1
        return self._looks > LOOKS or time.monotonic() > self._until


def _allowed(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    otherwise = action == sqlite3.SQLITE_FUNCTION and (name or "").lower().startswith(OTHERWISE)
    return sqlite3.SQLITE_OK if action in READS | WRITES and not otherwise else sqlite3.SQLITE_DENY


def _shown(cell: Any) -> Any:
    return cell[:CELL_CHARS] if isinstance(cell, str) else repr(cell)[:CELL_CHARS] if isinstance(cell, bytes) else cell


class Database(World):
    """Tasks by seed, each on a database of its own."""

    def __init__(self, seed: int = 0, train: int = 512, held_out: int = 128) -> None:
        self._counts = {"train": (seed, train), "held_out": (seed + HELD_OUT, held_out)}

    def questions(self, split: Literal["train", "held_out"]) -> Iterable[Question]:
        first, count = self._counts[split]
        for number in range(first, first + count):
            yield Question(f"{wanted(number)[0]} Then submit 'done'.", {"seed": number}, ability="write")

    def start(self, question: Question, seed: int) -> Copy:
        number = question.reference["seed"]
        return Copy(number, wanted(number)[1])

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Pay for the right tables at the end of a trajectory that says it is done."""
        return Score(success=trajectory.outcome["right"] and trajectory.answer is not None)

    def demonstrate(self, question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
        seed = question.reference["seed"] if good else rng.randrange(HELD_OUT)
        return [("write it", f"query({wanted(seed)[1]!r})"), ("that is all", "submit_final_answer('done')")]
