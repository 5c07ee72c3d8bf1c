"""Questions and the corpus of a run: generated, or read from files."""

import re
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from nbrl.infra.storage import Storage, sha256
from nbrl.tasks.environments.world.world import World
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout import DataLayout

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("ability", pa.string()),
        ("source", pa.string()),
    ]
)
CORPUS_SCHEMA = pa.schema([("passage", pa.string())])
SPLITS = ("train", "held_out")
READERS = {".jsonl": "read_json({!r}, lines=True)", ".ndjson": "read_json({!r}, lines=True)", ".json": "read_json({!r})"}
READERS |= {".csv": "read_csv({!r})", ".tsv": "read_csv({!r}, sep='\\t')"}  # pandas' own
ID = re.compile(r"[A-Za-z0-9._:-]{1,120}")
ABILITY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9 _.:-]{0,79}")  # part of a metric's name


class GeneratedData(BaseModel):
    """An invented world, made from `seed`; train and held-out questions share no entity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["generated"] = Field("generated", description="questions about an invented world")
    seed: int = Field(0, description="seed of the world and its questions")
    train: int = Field(1024, ge=1, le=10_000, description="questions to train on")
    held_out: int = Field(256, ge=1, le=2_000, description="questions to evaluate on")


class FileData(BaseModel):
    """Parquet files with the columns id, question, answers (list of strings), ability, source; the corpus has one, passage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["files"] = Field(description="questions of your own")
    train: Path = Field(description="questions to train on")
    held_out: Path = Field(description="questions to evaluate on")
    corpus: Path | None = Field(None, description="passages that search searches; none when not set")


DataSettings = Annotated[GeneratedData | FileData, Field(discriminator="kind")]


def check(settings: GeneratedData | FileData) -> int:
    """Number of training questions. Raises ConfigError when a file is missing or not what it must be."""
    if isinstance(settings, GeneratedData):
        return settings.train
    if settings.corpus is not None:
        _read(settings.corpus, CORPUS_SCHEMA)
    train, _ = questions(settings.train), questions(settings.held_out)
    return len(train)


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    """A Parquet file of `schema` without a null or a row too few."""
    path = path.absolute()
    if not path.is_file():
        raise ConfigError(f"data file {path} does not exist; set data.train, data.held_out and data.corpus to Parquet files")
    if reader := READERS.get(path.suffix.lower()):
        raise ConfigError(
            f"data file {path} is no Parquet file; make one of it, for example in Python: "
            f"pandas.{reader.format(str(path))}.to_parquet({str(path.with_suffix('.parquet'))!r})"
        )
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"data file {path} is no readable Parquet file: {error}") from error
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise ConfigError(f"data file {path} lacks the column {missing[0]!r}; it needs {', '.join(schema.names)}")
    table = pa.table([_column(path, table, field) for field in schema], schema=schema)
    if not len(table):
        raise ConfigError(f"data file {path} has no rows")
    for name in schema.names:
        if table[name].null_count:
            raise ConfigError(f"data file {path}: {table[name].null_count} rows have no {name!r}; fill it or leave them out")
    return table


def _column(path: Path, table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    found = table[field.name]
    if found.type != field.type and pa.types.is_list(field.type) and not pa.types.is_nested(found.type):
        raise ConfigError(
            f"data file {path}: the column {field.name!r} holds single values where lists of strings are needed: ['42'], not '42'"
        )
    try:
        return found.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"data file {path}: the column {field.name!r} is {found.type} where {field.type} is needed") from error


def questions(path: Path) -> pa.Table:
    """Questions with ids that can name files, each once, and at least one answer that says something."""
    table = _read(path, SCHEMA)
    ids: list[str] = table["id"].to_pylist()
    if len(set(ids)) < len(ids):
        raise ConfigError(f"data file {path} has a repeated id; every question needs its own")
    for row in table.select(["id", "question", "answers", "ability"]).to_pylist():
        if not ID.fullmatch(row["id"]):
            raise ConfigError(f"data file {path}: id {row['id'][:80]!r} must be up to 120 letters, digits, '.', '_', ':' and '-'")
        if not ABILITY.fullmatch(row["ability"]):
            raise ConfigError(
                f"data file {path}: ability {row['ability'][:80]!r} must be up to 80 letters, digits, spaces, '_', '.', ':', '-'"
            )
        if not row["question"].strip():
            raise ConfigError(f"data file {path}: question {row['id']!r} is empty")
        if not row["answers"] or not all(answer and answer.strip() for answer in row["answers"]):
            raise ConfigError(f"data file {path}: question {row['id']!r} has an empty answer; give it one or leave it out")
    return table


def write(settings: GeneratedData | FileData, storage: Storage, layout: DataLayout) -> None:
    """Write train, held_out and corpus, then their digests, unless they are there."""
    if storage.exists(layout.digests):
        return
    keys = [layout.corpus, *(layout.split(split) for split in SPLITS)]
    if all(storage.exists(key) for key in keys):  # releases before this one wrote no digests
        digests = {key: sha256(storage.read_bytes(key)) for key in keys}
    else:
        digests = {key: storage.write_table(key, table) for key, table in zip(keys, _tables(settings), strict=True)}
    storage.create_json(layout.digests, digests)


def read(storage: Storage, layout: DataLayout, key: str) -> pa.Table:
    """A table that `write` wrote. Raises DamagedError if it is not what was written."""
    return storage.read_table(key, storage.read_json(layout.digests)[key])


def _tables(settings: GeneratedData | FileData) -> list[pa.Table]:
    """Corpus, train and held_out."""
    if isinstance(settings, FileData):
        corpus = _read(settings.corpus, CORPUS_SCHEMA) if settings.corpus else CORPUS_SCHEMA.empty_table()
        return [corpus, questions(settings.train), questions(settings.held_out)]
    train = World.generate(settings.seed, "train", settings.train)
    held_out = World.generate(settings.seed, "held_out", settings.held_out)
    passages = sorted({*train.corpus, *held_out.corpus})
    return [
        pa.table({"passage": passages}, schema=CORPUS_SCHEMA),
        *(pa.Table.from_pylist([q.model_dump() for q in world.questions], schema=SCHEMA) for world in (train, held_out)),
    ]
