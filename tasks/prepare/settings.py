"""The recipe of a preparation: which files become training questions, and what is left out of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from nbrl.infra.closed import FREE, ClosedModel, acts_if
from nbrl.infra.home import ROOT
from nbrl.infra.ray_cluster import RaySettings
from nbrl.tasks.environments.addresses import FilesAt
from nbrl.tasks.environments.questions import ABILITY
from nbrl.tasks.errors import did_you_mean
from nbrl.tasks.layout.runs import NAME as RUN_NAME
from nbrl.tasks.reward.judge.settings import GraderSettings
from nbrl.tasks.reward.rules.rule import Rule

# A path is excluded from the dump: the digest of the file decides, wherever it lies.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"  # a part of ids, which have at most 120 characters
MAPPED = ("id", "question", "answers", "ability", "rule")


def _known(columns: Mapping[str, str], ours: Iterable[str]) -> Mapping[str, str]:
    for name in columns:
        if name not in ours:
            raise ValueError(f"there is no column {name!r} to name; {did_you_mean(name, tuple(ours))}")
    return columns


class QuestionSource(ClosedModel):
    """One item of the list `sources`: a file of questions to train on."""

    name: str = Field(pattern=NAME, description="its name in ids, in the column source and in the data card")
    path: FilesAt = Field(
        description="Parquet, JSON lines, JSON, CSV or TSV file, or its address; take the training split of a data set",
        exclude=True,
    )
    licence: str = Field(min_length=1, description="licence of the data, for the data card")
    columns: dict[str, str] = Field(
        default_factory=dict, description="name of a column of ours (id, question, answers, ability, rule): its name in the file"
    )
    rule: Rule = Field("qa", description="how answers are compared, where the file has no column rule")
    ability: str = Field("qa", description="ability of the questions, where the file has no column ability")

    @field_validator("columns")
    @classmethod
    def _ours(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        return _known(columns, MAPPED)

    @field_validator("ability")
    @classmethod
    def _ability(cls, ability: str) -> str:
        if not ABILITY.fullmatch(ability):
            raise ValueError("an ability is up to 80 letters, digits, spaces, '_', '.', ':' and '-'")
        return ability


class EvaluationFile(ClosedModel):
    """One item of the list `evaluation`: a file of questions that must not be trained on."""

    name: str = Field(pattern=NAME, description="its name in the data card and in the reasons why questions are dropped")
    path: FilesAt = Field(description="Parquet, JSON lines, JSON, CSV or TSV file, or its address", exclude=True)
    columns: dict[str, str] = Field(default_factory=dict, description="{question: NAME} if the file's column has another name")

    @field_validator("columns")
    @classmethod
    def _ours(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        return _known(columns, ("question",))


class SimilaritySettings(ClosedModel):
    """The similarity of two questions: the Jaccard similarity of their sets of character n-grams, candidates found by MinHash."""

    threshold: float = Field(ge=0.3, le=1, description="similarity from which two questions are near duplicates")
    permutations: int = Field(128, ge=16, le=1024, description="length of a MinHash; more finds more of the pairs just above it")
    ngram: int = Field(5, ge=1, le=50, description="characters of an n-gram")


class DeduplicateSettings(SimilaritySettings):
    """Equal and nearly equal questions, of which the first stays, by the order of the sources and then by id."""

    threshold: float = Field(0.8, ge=0.3, le=1, description="similarity from which two questions are near duplicates")
    same_answer: bool = Field(
        True,
        description="drop a near duplicate only if it shares an answer; else problems that differ in a number, or questions "
        "that differ in a name, would count as one",
    )


class DecontaminateSettings(SimilaritySettings):
    """Questions too like one of an evaluation file, whatever their answers."""

    threshold: float = Field(
        0.7, ge=0.3, le=1, description="similarity from which a question counts as one of an evaluation file"
    )
    shared_words: int | None = Field(
        13, ge=4, description="drop a question that shares so many words in a row with one of an evaluation file; null: none is"
    )


class RateSettings(GraderSettings):
    """A model that rates each question's objectivity and temporal stability as -1, 0 or 1."""

    min_objectivity: int = Field(1, ge=-1, le=1, description="lowest objectivity of a question that stays")
    min_stability: int = Field(1, ge=-1, le=1, description="lowest temporal stability of a question that stays")
    max_unrated: float = Field(
        0.02,
        ge=0,
        le=1,
        description="largest share of questions that may stay unrated; above it the preparation stops",
        json_schema_extra=FREE,
    )


class DifficultySettings(ClosedModel):
    """An evaluation of the policy on these questions; its share of right answers to a question is the pass rate."""

    evaluation: str = Field(
        pattern=rf"^{RUN_NAME.pattern}$", description="name of a finished evaluation, as `nbrl evaluate --name` has it"
    )
    root: str = Field(
        ROOT, description="storage root of the evaluation; `storage` in `--home` when not set", json_schema_extra=FREE
    )
    max_unrated: float = Field(
        0.02,
        ge=0,
        le=1,
        description="largest share of questions without a pass rate; above it the preparation stops",
        json_schema_extra=FREE,
    )
    min_pass_rate: float = Field(0.1, ge=0, le=1, description="lowest pass rate of a question that stays")
    max_pass_rate: float = Field(0.9, ge=0, le=1, description="highest pass rate of a question that stays")

    @model_validator(mode="after")
    def _range(self) -> "DifficultySettings":
        if self.min_pass_rate > self.max_pass_rate:
            raise ValueError("min_pass_rate is above max_pass_rate, so that no question would stay")
        return self


class SplitSettings(ClosedModel):
    """Shares of the questions. Where one goes depends on its id and the seed alone, so that it stays there when others come."""

    train: float = Field(0.8, gt=0, le=1, description="share to train on")
    held_out: float = Field(0.1, ge=0, le=1, description="share to evaluate on during training")
    test: float = Field(0.1, ge=0, le=1, description="share to keep for the end")
    seed: int = Field(42, description="another seed splits the questions in another way")

    @model_validator(mode="after")
    def _whole(self) -> "SplitSettings":
        if abs(self.train + self.held_out + self.test - 1) > 1e-9:
            raise ValueError("train, held_out and test must add up to 1")
        return self


class PrepareSettings(ClosedModel):
    """All settings of a preparation. An unknown key is an error."""

    sources: tuple[QuestionSource, ...] = Field(min_length=1)
    evaluation: tuple[EvaluationFile, ...] = ()
    deduplicate: DeduplicateSettings = DeduplicateSettings()
    decontaminate: DecontaminateSettings = Field(DecontaminateSettings(), json_schema_extra=acts_if("evaluation"))
    rate: RateSettings | None = None
    difficulty: DifficultySettings | None = None
    split: SplitSettings = SplitSettings()
    ratings: Path | None = Field(
        None,
        description="folder in which ratings are kept, by default the output folder; preparations that name the same one pay for "
        "each rating once",
        json_schema_extra=FREE | acts_if("rate"),
    )
    ray: RaySettings = Field(RaySettings(), json_schema_extra=FREE)

    @model_validator(mode="after")
    def _consistent(self) -> "PrepareSettings":
        for kind, names in (("sources", [s.name for s in self.sources]), ("evaluation", [e.name for e in self.evaluation])):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"two {kind} have the name {twice[0]!r}; each needs its own")
        return self
