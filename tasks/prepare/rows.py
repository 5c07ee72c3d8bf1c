"""The input and output of a stage of the preparation: a table of questions, in which each dropped one has its reason."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.tasks.environments.questions import SCHEMA
from nbrl.tasks.prepare.settings import SplitSettings

# The columns that files of questions may have.
QUESTIONS = pa.schema([SCHEMA.field(name) for name in ("id", "question", "answers", "ability", "source", "rule")])
DROPPED, DETAIL = "dropped", "detail"
BLOCK_ROWS = 2048  # rows of one Ray task

# Why a row is dropped, and what it was found to be like or wrong with; None for a row that stays.
Reason = tuple[str, str] | None
SPLITS = ("train", "held_out", "test")


class Map(Protocol):
    """`nbrl.infra.ray_data.map_tables`, or what does the same without Ray."""

    def __call__(self, tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table: ...


def marked(table: pa.Table, reasons: Sequence[Reason]) -> pa.Table:
    """Return the rows, each with the reason why it is dropped, if it is."""
    columns = {DROPPED: [reason and reason[0] for reason in reasons], DETAIL: [reason and reason[1] for reason in reasons]}
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values, pa.string()))
    return table


def kept(table: pa.Table) -> pa.Table:
    """Return the rows that stay, as the next stage takes them."""
    return table.filter(pc.is_null(table[DROPPED])).drop_columns([DROPPED, DETAIL])


def drops(table: pa.Table) -> dict[str, int]:
    """Return the number of dropped rows by reason, most frequent first."""
    counts = Counter(reason for reason in table[DROPPED].to_pylist() if reason is not None)
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def blocks(table: pa.Table) -> list[pa.Table]:
    """Return the rows in tables of BLOCK_ROWS; one table if there are none."""
    return [table.slice(first, BLOCK_ROWS) for first in range(0, max(1, len(table)), BLOCK_ROWS)]


def split_of(name: str, settings: SplitSettings) -> str:
    """Return the split of the question with this id: where a uniform number made of id and seed falls among the shares."""
    place = int.from_bytes(hashlib.sha256(f"{settings.seed}:{name}".encode()).digest()[:8]) / 2**64
    if place < settings.train:
        return "train"
    return "held_out" if place < settings.train + settings.held_out or not settings.test else "test"


def split(questions: pa.Table, settings: SplitSettings) -> pa.Table:
    """Return the questions with the column `split`, marked; none is dropped."""
    names = [split_of(name, settings) for name in questions["id"].to_pylist()]
    return marked(questions.append_column("split", pa.array(names, pa.string())), [None] * len(names))


def part(table: pa.Table, name: str) -> pa.Table:
    """Return the questions of one split, with the columns of a file of questions."""
    return table.filter(pc.equal(table["split"], name)).select(QUESTIONS.names)
