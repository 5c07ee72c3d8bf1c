"""The data card: what the data are made of, and what was left out and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.prepare import similar
from nbrl.tasks.prepare.rows import DETAIL, DROPPED, SPLITS, drops, kept, part
from nbrl.tasks.prepare.stages import Identity

Card = dict[str, Any]
RATINGS = ("objectivity", "stability", "pass_rate")
CARD, READABLE = "card.json", "card.md"
GONE = ("id", "source", "question", DROPPED, DETAIL)


def card(stages: Mapping[str, pa.Table], wanted: Identity) -> Card:
    """Return the figures of the card. `stages` are all results in order, from unify to split.

    Raises BrokenInvariantError unless every row that came in is in a split or was dropped for a reason.
    """
    tables = list(stages.values())
    final = kept(tables[-1])
    lost = sum(sum(drops(table).values()) for table in tables)
    if len(tables[0]) != len(final) + lost:
        raise BrokenInvariantError(
            f"{len(tables[0])} rows came in, {len(final)} stay and {lost} were dropped; this is a fault of nbrl"
        )
    return {
        "questions": {name: final["split"].to_pylist().count(name) for name in SPLITS},
        "stages": [
            {"stage": name, "in": len(table), "kept": len(kept(table)), "dropped": drops(table)} for name, table in stages.items()
        ],
        "sources": [_source(name, stages, wanted) for name in wanted["sources"]],
        "evaluation": [
            {"name": name, "sha256": wanted[f"evaluation.{name}"]["sha256"], "dropped": _because_of(stages, name)}
            for name in wanted["evaluation"]
        ],
        "ratings": {name: _histogram(stages, name) for name in RATINGS if any(name in table.column_names for table in tables)},
        "settings": wanted,
    }


def _source(name: str, stages: Mapping[str, pa.Table], wanted: Identity) -> Card:
    own = {stage: table.filter(pc.equal(table["source"], name)) for stage, table in stages.items()}
    return {
        "name": name,
        "licence": wanted[f"sources.{name}"]["licence"],
        "sha256": wanted[f"sources.{name}"]["sha256"],
        "rows": len(own["unify"]),
        "kept": {stage: len(kept(table)) for stage, table in own.items()},
        "dropped": {stage: drops(table) for stage, table in own.items() if drops(table)},
    }


def _because_of(stages: Mapping[str, pa.Table], evaluation: str) -> int:
    """Return the number of questions dropped for one of this evaluation file."""
    table = stages[similar.STAGE]
    details = table.filter(pc.is_valid(table[DROPPED]))["detail"].to_pylist()
    return sum(detail.partition(": ")[0] == evaluation for detail in details)


def _histogram(stages: Mapping[str, pa.Table], name: str) -> dict[str, int]:
    """Return the number of questions with each value, in the stage that measured it."""
    table = next(table for table in stages.values() if name in table.column_names)
    counts = Counter(value for value in table[name].to_pylist() if value is not None)
    return {f"{value:g}": counts[value] for value in sorted(counts)}


def markdown(figures: Card, outputs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the card for people."""
    stages = [[each["stage"], each["in"], each["kept"], _reasons(each["dropped"])] for each in figures["stages"]]
    sources = [[s["name"], s["licence"], s["rows"], s["kept"]["split"], f"`{s['sha256']}`"] for s in figures["sources"]]
    evaluation = [[e["name"], e["dropped"], f"`{e['sha256']}`"] for e in figures["evaluation"]]
    parts = [
        "# Data card",
        "Questions with reference answers, prepared by `nbrl prepare`. Every dropped question is in `dropped.parquet` with its "
        "stage, the reason and what it was found to be like.",
        "## Files",
        _table(["file", "rows", "SHA-256"], [[name, each["rows"], f"`{each['sha256']}`"] for name, each in outputs.items()]),
        "## Sources",
        _table(["source", "licence", "rows", "kept", "SHA-256 of the file"], sources),
        "## Stages",
        _table(["stage", "questions in", "kept", "dropped, and why"], stages),
        "## Kept of each source",
        _table(
            ["source", *(each["stage"] for each in figures["stages"])],
            [[source["name"], *source["kept"].values()] for source in figures["sources"]],
        ),
        "## Evaluation files",
        _table(["file", "questions dropped for it", "SHA-256"], evaluation)
        if evaluation
        else "None: nothing was decontaminated.",
    ]
    for name, counts in figures["ratings"].items():
        parts += [
            f"## {name.replace('_', ' ').capitalize()}",
            _table([name.replace("_", " "), "questions"], list(counts.items())),
        ]
    settings = [
        [f"`{key}`", f"`{value}`"] for key, value in figures["settings"].items() if not key.startswith(("sources", "evaluation"))
    ]
    return "\n\n".join([*parts, "## Settings", _table(["key", "value"], settings)]) + "\n"


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "none"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


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
    """Return the card of a finished preparation; None if it, or a file that it names, is not there or damaged."""
    try:
        figures = storage.read_json(CARD)
        for name, each in figures["outputs"].items():
            storage.read_bytes(name, each["sha256"])
        storage.read_bytes(READABLE)
    except (MissingError, DamagedError):
        return None
    return figures


def _gone(stages: Mapping[str, pa.Table]) -> pa.Table:
    """Return all dropped questions with stage, reason and detail."""
    parts = []
    for name, table in stages.items():
        gone = table.filter(pc.is_valid(table[DROPPED])).select(GONE)
        parts.append(gone.add_column(0, "stage", pa.array([name] * len(gone), pa.string())))
    return pa.concat_tables(parts)
