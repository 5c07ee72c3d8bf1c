"""Writes what a preparation gives: the splits, the dropped questions and the data card, which comes last."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.prepare.card import Card, card, markdown
from nbrl.tasks.prepare.identity import Identity
from nbrl.tasks.prepare.rows import DETAIL, DROPPED
from nbrl.tasks.prepare.split import SPLITS, part

CARD, READABLE = "card.json", "card.md"
GONE = ("id", "source", "question", DROPPED, DETAIL)


def write(storage: Storage, stages: Mapping[str, pa.Table], wanted: Identity) -> Card:
    """Write all files and return the card; a split of share 0 has no file."""
    figures = card(stages, wanted)
    tables = {f"{name}.parquet": part(stages["split"], name) for name in SPLITS if wanted[f"split.{name}"]}
    tables["dropped.parquet"] = _gone(stages)
    outputs = {
        name: {"rows": len(table), "sha256": storage.write_table(name, table.combine_chunks())} for name, table in tables.items()
    }
    storage.write_bytes(READABLE, markdown(figures, outputs).encode())
    figures["outputs"] = outputs
    storage.write_json(CARD, figures)
    return figures


def finished(storage: Storage) -> Card | None:
    """The card of a finished preparation; None if it, or a file that it names, is not there or damaged."""
    try:
        figures = storage.read_json(CARD)
        for name, each in figures["outputs"].items():
            storage.read_bytes(name, each["sha256"])
        storage.read_bytes(READABLE)
    except (MissingError, DamagedError):
        return None
    return figures


def _gone(stages: Mapping[str, pa.Table]) -> pa.Table:
    """All dropped questions with stage, reason and detail."""
    parts = []
    for name, table in stages.items():
        gone = table.filter(pc.is_valid(table[DROPPED])).select(GONE)
        parts.append(gone.add_column(0, "stage", pa.array([name] * len(gone), pa.string())))
    return pa.concat_tables(parts)
