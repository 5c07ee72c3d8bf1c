"""Questions and the corpus of a run: generated, or read from files, and written below the run when it begins."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, field_validator

from nbrl.infra.storage import Storage, sha256
from nbrl.tasks.environments.files import read_passages, read_questions
from nbrl.tasks.environments.gym import GymData, check_tasks, gym_questions
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, SCHEMA, with_rules
from nbrl.tasks.environments.world.world import World
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.layout import DataLayout
from nbrl.tasks.reward.rules.rule import Rule

SPLITS = ("train", "held_out")
MAPPED = tuple(name for name in SCHEMA.names if name != "reference")


class GeneratedData(BaseModel):
    """An invented world, made from `seed`; train and held-out questions share no entity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["generated"] = Field("generated", description="questions about an invented world")
    seed: int = Field(0, description="seed of the world and its questions")
    train: int = Field(1024, ge=1, le=10_000, description="questions to train on")
    held_out: int = Field(256, ge=1, le=2_000, description="questions to evaluate on")


class FileData(BaseModel):
    """Parquet, JSON lines, JSON, CSV or TSV files: a question with its answers in each row, or in the corpus a passage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["files"] = Field(description="questions of your own")
    train: Path = Field(description="questions to train on")
    held_out: Path = Field(description="questions to evaluate on")
    corpus: Path | None = Field(None, description="passages that search searches; none when not set")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="name of a column of ours (id, question, answers, ability, source, rule): its name in your files",
    )
    rule: Rule = Field(
        "qa",
        description="how answers are compared, where files have no column rule: as words, numbers, options or mathematics",
    )

    @field_validator("columns")
    @classmethod
    def _ours(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        for name in columns:
            if name not in MAPPED:
                raise ValueError(f"there is no column {name!r} to name; {did_you_mean(name, MAPPED)}")
        return columns

    def questions(self, split: str) -> pa.Table:
        """The questions of a split. Raises ConfigError when the file is missing or not what it must be."""
        return read_questions(self.train if split == "train" else self.held_out, self.columns, self.rule)


Data = GeneratedData | FileData | GymData
DataSettings = Annotated[Data, Field(discriminator="kind")]


def check(settings: Data) -> int:
    """Number of training questions. Raises ConfigError when a file or a task is missing, or is not what it must be."""
    if isinstance(settings, GeneratedData):
        return settings.train
    if isinstance(settings, GymData):
        check_tasks(settings)
        return settings.train
    if settings.corpus is not None:
        read_passages(settings.corpus)
    train, held_out = [settings.questions(split) for split in SPLITS]
    rules = {*train["rule"].to_pylist(), *held_out["rule"].to_pylist()}
    if "math" in rules and find_spec("math_verify") is None:
        raise ConfigError("the rule math needs the package math-verify: pip install 'nbrl[math]'")
    return len(train)


def write(settings: Data, storage: Storage, layout: DataLayout) -> None:
    """Write train, held_out and corpus, then their digests, unless they are there."""
    if storage.exists(layout.digests):
        return
    keys = [layout.corpus, *(layout.split(split) for split in SPLITS)]
    if all(storage.exists(key) for key in keys):  # releases before this one wrote no digests
        digests = {key: sha256(storage.read_bytes(key)) for key in keys}
    else:
        digests = {key: storage.write_table(key, table) for key, table in zip(keys, _tables(settings), strict=True)}
    storage.create_json(layout.digests, digests)


def read_corpus(storage: Storage, layout: DataLayout) -> pa.Table:
    """The passages that `write` wrote. Raises DamagedError if they are not what was written."""
    return storage.read_table(layout.corpus, storage.read_json(layout.digests)[layout.corpus])


def read(storage: Storage, layout: DataLayout, split: str) -> pa.Table:
    """The questions that `write` wrote. Raises DamagedError if they are not what was written."""
    key = layout.split(split)
    return with_rules(storage.read_table(key, storage.read_json(layout.digests)[key]))


def _tables(settings: Data) -> list[pa.Table]:
    """Corpus, train and held_out."""
    if isinstance(settings, GymData):
        return [CORPUS_SCHEMA.empty_table(), *gym_questions(settings)]
    if isinstance(settings, FileData):
        corpus = read_passages(settings.corpus) if settings.corpus else CORPUS_SCHEMA.empty_table()
        return [corpus, *(settings.questions(split) for split in SPLITS)]
    train = World.generate(settings.seed, "train", settings.train)
    held_out = World.generate(settings.seed, "held_out", settings.held_out)
    passages = sorted({*train.corpus, *held_out.corpus})
    return [
        pa.table({"passage": passages}, schema=CORPUS_SCHEMA),
        *(pa.Table.from_pylist([q.model_dump() for q in world.questions], schema=SCHEMA) for world in (train, held_out)),
    ]
