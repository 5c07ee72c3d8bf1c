"""Questions from files as an environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from nbrl.tasks.environments.addresses import FilesAt
from nbrl.tasks.environments.datasets.catalogue import CATALOGUE
from nbrl.tasks.environments.datasets.fetch import convert, from_hub, hub_table
from nbrl.tasks.environments.environment import Environment, Tables
from nbrl.tasks.environments.files import MAPPED, VERL, questions_of, read_passages, read_questions
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, SCHEMA
from nbrl.tasks.errors import did_you_mean
from nbrl.tasks.reward.rules.rule import JUDGE, Rule


class FilesEnvironment(Environment):
    """Parquet, JSON lines, JSON, CSV or TSV files: a question with its answers in each row, or in the corpus a passage."""

    kind: Literal["files"] = Field(description="questions of your own")
    train: FilesAt | None = Field(
        None, description="questions to train on, a path or an address; a training needs it, unless its weight is 0"
    )
    held_out: FilesAt = Field(description="questions to evaluate on, a path or an address")
    corpus: FilesAt | None = Field(None, description="passages that search searches, a path or an address; none when not set")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="id, question, answers, ability, source, rule, files, expected, tests, setup, entry_points, max_steps or "
        "deadline_s: the column's name in your files",
    )
    rule: Rule = Field(
        "qa",
        description="how answers are compared, where files have no column rule: see docs/environments.md",
    )

    @field_validator("columns")
    @classmethod
    def _ours(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        for name in columns:
            if name not in MAPPED:
                raise ValueError(f"there is no column {name!r} to name; {did_you_mean(name, MAPPED)}")
        return columns

    def load(self, key: str) -> Tables:
        attached: dict[str, Path | bytes] = {}
        train, held_out = [
            SCHEMA.empty_table() if path is None else read_questions(path, self.columns, self.rule, key, attached)
            for path in (self.train, self.held_out)
        ]
        corpus = read_passages(self.corpus, f"{key}.corpus") if self.corpus else CORPUS_SCHEMA.empty_table()
        return Tables(train, held_out, corpus, attached)


class HubEnvironment(Environment):
    """A data set of the Hugging Face hub: one that `nbrl data list` names, or any other by `owner/name` and its columns."""

    kind: Literal["hub"] = Field(description="questions of a data set on the hub")
    dataset: str = Field(description="name in `nbrl data list`, or owner/name on the hub")
    configuration: str = Field("default", description="configuration of the data set; of owner/name only")
    train: str | None = Field("train", description="split to train on; a training needs it, unless its weight is 0")
    held_out: str = Field("test", description="split to evaluate on")
    limit: int | None = Field(None, ge=1, description="questions of each split, from the first; all when not set")
    columns: dict[str, str] = Field(
        default_factory=dict, description="name of a column of ours: its name in the data set; of owner/name only"
    )
    rule: Rule | None = Field(
        None,
        description="how answers are compared: when not set, by the rule of a known data set, else qa; known ones may have judge",
    )

    @field_validator("columns")
    @classmethod
    def _ours(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        for name in columns:
            if name not in MAPPED or name == "files":
                raise ValueError(f"there is no column {name!r} to name; {did_you_mean(name, [*MAPPED])}")
        return columns

    @model_validator(mode="after")
    def _acts(self) -> "HubEnvironment":
        if "/" not in self.dataset and self.dataset not in CATALOGUE:
            raise ValueError(f"there is no data set {self.dataset!r}; {did_you_mean(self.dataset, CATALOGUE)}")
        described = self.configuration != "default" or self.columns or self.rule not in (None, JUDGE)
        if self.dataset in CATALOGUE and described:
            raise ValueError(f"configuration, columns and rule of {self.dataset} are known; leave them out (rule may be judge)")
        return self

    def load(self, key: str) -> Tables:
        train, held_out = [self._split(key, split) for split in (self.train, self.held_out)]
        passages = dict.fromkeys([*train.corpus["passage"].to_pylist(), *held_out.corpus["passage"].to_pylist()])
        return Tables(train.train, held_out.train, pa.table({"passage": list(passages)}, schema=CORPUS_SCHEMA))

    def _split(self, key: str, split: str | None) -> Tables:
        """Return the questions of one split, and the passages that come with them."""
        if split is None:
            return Tables(SCHEMA.empty_table(), SCHEMA.empty_table())
        if self.dataset in CATALOGUE:
            fetched = convert(self.dataset, split, from_hub(self.dataset, split), self.limit)
            questions = fetched.questions
            if self.rule == JUDGE:
                judged = pa.array([JUDGE] * len(questions), pa.string())
                questions = questions.set_column(SCHEMA.get_field_index("rule"), SCHEMA.field("rule"), judged)
            return Tables(questions, questions, fetched.passages)
        table = hub_table(self.dataset, self.configuration, split, self.limit)
        name = f"{self.dataset.rpartition('/')[2]}-{split}"
        columns = self.columns or (VERL if {*VERL.values()} <= {*table.column_names} else {})
        found = questions_of(table, f"the data set {self.dataset}", name, columns, self.rule or "qa", key)
        return Tables(found, found)
