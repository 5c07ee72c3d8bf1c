"""Questions from files as an environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from nbrl.tasks.environments.environment import Environment, Tables
from nbrl.tasks.environments.files import MAPPED, read_passages, read_questions
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, SCHEMA
from nbrl.tasks.errors import did_you_mean
from nbrl.tasks.reward.rules.rule import Rule


class FilesEnvironment(Environment):
    """Parquet, JSON lines, JSON, CSV or TSV files: a question with its answers in each row, or in the corpus a passage."""

    kind: Literal["files"] = Field(description="questions of your own")
    train: Path | None = Field(None, description="questions to train on; needed unless its weight is 0")
    held_out: Path = Field(description="questions to evaluate on")
    corpus: Path | None = Field(None, description="passages that search searches; none when not set")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="id, question, answers, ability, source, rule, files, expected, tests, setup or entry_points: the column's "
        "name in your files",
    )
    rule: Rule = Field(
        "qa",
        description="how answers are compared, where files have no column rule: see docs/environments.md",
    )

    @field_validator("train", "held_out", "corpus", mode="before")
    @classmethod
    def _here(cls, value: Any) -> Any:
        if isinstance(value, str) and "://" in value:
            raise ValueError(
                f"{value} is an address, and nbrl reads files of this machine; fetch it, or use kind hub, then name it"
            )
        return value

    @field_validator("columns")
    @classmethod
    def _ours(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        for name in columns:
            if name not in MAPPED:
                raise ValueError(f"there is no column {name!r} to name; {did_you_mean(name, MAPPED)}")
        return columns

    @model_validator(mode="after")
    def _trains(self) -> "FilesEnvironment":
        if self.weight and self.train is None:
            raise ValueError("train is not set; name the file of its training questions, or set weight to 0")
        return self

    def load(self, key: str) -> Tables:
        attached: dict[str, Path] = {}
        train, held_out = [
            SCHEMA.empty_table() if path is None else read_questions(path, self.columns, self.rule, key, attached)
            for path in (self.train, self.held_out)
        ]
        corpus = read_passages(self.corpus, f"{key}.corpus") if self.corpus else CORPUS_SCHEMA.empty_table()
        return Tables(train, held_out, corpus, attached)
