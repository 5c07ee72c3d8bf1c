"""Tables of JSON lines and of lists in JSON, whose values may be of any shape."""

import json
import math
from bisect import bisect_left
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.tasks.environments import csv_table
from nbrl.tasks.environments.csv_table import contents, is_zipped, kind_of, opened, too_long

LINE_BYTES = 1 << 27  # of a line
MOST_NAMES = 10_000  # of columns in a file
SPARSE, DENSITY = 1 << 22, 20  # members that structures of a column may have in all, and how many for each that is given

Convert = Callable[[Any], Any]


class Number(str):
    """A number of JSON, as it is written."""


def json_table(path: Path, converts: Mapping[str, Convert]) -> pa.Table:
    """Return the objects of a file as rows. Values of columns that nothing converts may be of any shape and are left out."""
    columns: dict[str, dict[int, Any]] = {}  # the values that are given, by their rows
    places: list[int] = []
    for place, row in objects(path, Number):
        for name, value in row.items():
            given = columns.setdefault(name, {})
            if name in converts:
                given[len(places)] = converts[name](value)
        places.append(place)

    def column(name: str, given: dict[int, Any]) -> pa.Array:
        if name not in converts:
            return pa.nulls(len(places))
        _check_dense(name, given.values())
        return _array(path, name, [given.get(row) for row in range(len(places))], places)

    return pa.table({name: column(name, given) for name, given in columns.items()})


def _check_dense(name: str, values: Iterable[Any]) -> None:
    """Raises ValueError where structures have so many names between them that each as a row of all would be almost empty."""
    names, given, structures, left = set[str](), 0, 0, [*values]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            names.update(each)
            given, structures = given + len(each), structures + 1
        if isinstance(each, dict | list):
            left += each.values() if isinstance(each, dict) else each
    if structures * len(names) > max(SPARSE, DENSITY * given):
        raise ValueError(f"the objects in {name!r} have {len(names)} different keys, of which each has few")


def _array(path: Path, name: str, values: list[Any], places: Sequence[int]) -> pa.Array:
    """Return the values as a column; where some are lists, another is a list of one.

    Raises ValueError with the place of the first that does not go with those before it.
    """
    if any(isinstance(value, list) for value in values):
        values = [[value] if isinstance(value, str | bool | Number) else value for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        row = bisect_left(range(1, len(values)), True, key=lambda count: not _fit(values[:count]))
        raise ValueError(f"{_place(path, places[row])}: {name!r} does not fit into its column: {error}") from error


def _fit(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
        return False
    return True


def objects(path: Path, number: Callable[[str], Any] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON list or JSON lines, with places from 1; `number` reads numbers. Raises ValueError."""
    decoder = json.JSONDecoder(parse_int=number, parse_float=number, object_pairs_hook=_distinct)
    names = set[str]()
    for place, value in _listed(path, decoder) if kind_of(path) == ".json" else _lines(path, decoder):
        if not isinstance(value, dict):
            raise ValueError(f"{_place(path, place)} is no object with named values")
        names.update(value)
        if len(names) > MOST_NAMES:
            raise ValueError(f"its objects have more than {MOST_NAMES} different keys")
        yield place, value


def _listed(path: Path, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    try:
        values = decoder.decode(contents(path).decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        lines = error.msg == "Extra data"
        raise ValueError(
            "it holds several values; the name of a file of JSON lines ends in .jsonl" if lines else error
        ) from error
    if not isinstance(values, list):
        raise ValueError("it is no list of objects with named values")
    yield from enumerate(values, 1)


def _lines(path: Path, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    with opened(path) as file:
        left = csv_table.TEXT_BYTES if is_zipped(path) else math.inf  # a file that is not packed has what it takes on the disk
        for place, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), 1):
            left -= len(line)
            if left < 0:
                raise too_long(path)
            if len(line) > LINE_BYTES:
                raise ValueError(f"line {place} has more than {LINE_BYTES >> 20} MB")
            if not line.strip():
                continue
            try:
                yield place, decoder.decode(line.removeprefix(BOM_UTF8).decode())
            except json.JSONDecodeError as error:
                raise ValueError(f"line {place}, character {error.colno}: {error.msg}") from error
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {place}: {error}") from error


def _place(path: Path, place: int) -> str:
    return f"{'object' if kind_of(path) == '.json' else 'line'} {place}"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises ValueError if it has a name twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has the name {twice[:80]!r} twice")
    return fields
