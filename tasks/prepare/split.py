"""split: deals the questions out to train, held_out and test."""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.tasks.prepare.rows import QUESTIONS, marked
from nbrl.tasks.prepare.settings import SplitSettings

SPLITS = ("train", "held_out", "test")


def split_of(name: str, settings: SplitSettings) -> str:
    """The split of the question with this id: where a uniform number made of id and seed falls among the shares."""
    place = int.from_bytes(hashlib.sha256(f"{settings.seed}:{name}".encode()).digest()[:8]) / 2**64
    if place < settings.train:
        return "train"
    return "held_out" if place < settings.train + settings.held_out or not settings.test else "test"


def split(questions: pa.Table, settings: SplitSettings) -> pa.Table:
    """The questions with the column `split`, marked; none is dropped."""
    names = [split_of(name, settings) for name in questions["id"].to_pylist()]
    return marked(questions.append_column("split", pa.array(names, pa.string())), [None] * len(names))


def part(table: pa.Table, name: str) -> pa.Table:
    """The questions of one split, with the columns of a file of questions."""
    return table.filter(pc.equal(table["split"], name)).select(QUESTIONS.names)
