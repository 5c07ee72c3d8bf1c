"""Files that a trajectory made, compared with those that were expected. Files of an agent are hostile: they are only parsed."""

import base64
import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

from nbrl.infra.parse import json_value
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.rules.number import same_decimal

CLOSE = 1e-6  # relative; numbers of JSON that differ by less are equal, unless both are whole
DEPTH = 50  # of nested JSON
# A number of a cell, as pandas and csv write it: .5, 1e-05. Both its parts are short, for what was made is hostile.
DECIMAL = re.compile(r"[+-]?((0|[1-9]\d{0,29})(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?")
CELLS = 200_000  # of a table


def reference_of(expected: Mapping[str, bytes]) -> str:
    """Return the reference of a question that expects these files, as JSON."""
    return json.dumps({name: base64.b64encode(data).decode() for name, data in expected.items()})


def judge(produced: Mapping[str, bytes], reference: str) -> Judged:
    """Judge the files: all expected ones must be there and right; partly right is the mean share of each. Others do not count.

    Tables (.csv, .tsv) are equal by their cells, numbers by value; .json by value; text (.txt, .md) by its lines, of which white
    space at the ends does not count; any other file by its bytes.
    """
    expected = {name: base64.b64decode(data) for name, data in json_value(reference).items()}
    shares = [share(name, produced[name], right) if name in produced else 0.0 for name, right in expected.items()]
    return Judged(float(min(shares) == 1.0), sum(shares) / len(shares))


def share(name: str, produced: bytes, expected: bytes) -> float:
    """Return how much of one file is right, from 0 to 1; 1 if it is equal to what was expected."""
    if produced == expected:
        return 1.0
    suffix = PurePosixPath(name).suffix.lower()
    try:
        match suffix:
            case ".csv" | ".tsv":
                delimiter = "\t" if suffix == ".tsv" else ","
                return _aligned(_cells(produced, delimiter), _cells(expected, delimiter), _same_cell)
            case ".json":
                return float(_same(json_value(produced), json_value(expected), 0))
            case ".txt" | ".md":
                return _aligned(_lines(produced), _lines(expected), str.__eq__)
    except (ValueError, RecursionError, csv.Error):  # no such file
        return 0.0
    return 0.0


def _lines(data: bytes) -> list[list[str]]:
    return [[line.strip()] for line in data.decode("utf-8-sig").strip().splitlines()]


def _cells(data: bytes, delimiter: str) -> list[list[str]]:
    """Return the cells of a table by rows; empty rows do not count. Raises ValueError for too many."""
    rows, left = [], CELLS
    for row in csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter):
        left -= len(row)
        if left < 0:
            raise ValueError("the table is too large")
        if row:
            rows.append([cell.strip() for cell in row])
    return rows


def _same_cell(one: str, other: str) -> bool:
    """Return whether cells are equal, as texts or as decimal numbers, also with an exponent; leading zeros make a text."""
    if one == other:
        return True
    if not (DECIMAL.fullmatch(one) and DECIMAL.fullmatch(other)):
        return False
    return Decimal(one) == Decimal(other) or same_decimal(one, other)


def _aligned(produced: list[list[str]], expected: list[list[str]], same: Callable[[str, str], bool]) -> float:
    """Return the share of cells that are equal at the same place, of as many as the larger of both has."""
    larger = max(sum(map(len, produced)), sum(map(len, expected)))
    if not larger:
        return 1.0
    pairs = [pair for rows in zip(produced, expected, strict=False) for pair in zip(*rows, strict=False)]
    return sum(same(one, other) for one, other in pairs) / larger


def _same(one: Any, other: Any, depth: int) -> bool:
    """Return whether two values of JSON are equal; true is not 1."""
    if depth > DEPTH:
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key], depth + 1) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(*pair, depth + 1) for pair in zip(one, other, strict=True))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return _same_number(one, other)
    return bool(one == other)


def _same_number(one: float, other: float) -> bool:
    """Return whether numbers of JSON are equal: whole ones exactly, others within CLOSE. Beyond every float, nothing is equal."""
    try:
        whole = float(one).is_integer() and float(other).is_integer()
        return math.isfinite(one) and (one == other if whole else math.isclose(one, other, rel_tol=CLOSE))
    except OverflowError:  # integers beyond every float
        return one == other
