"""Every key below a storage root, where runs and evaluations store their results.

Keys are relative and use `/`. Keys of tables, files and folders are defined only in this module.
"""

from dataclasses import dataclass

RUNS, EVALUATIONS = "runs", "evaluations"
TRAJECTORIES = "trajectories.parquet"
# Below a checkpoint: states to resume from, the model to serve, its LoRA adapter in peft's format, the result of the order.
STATE, CRITIC, HF, ADAPTER, RESULT = "state", "critic", "hf", "adapter", "result.json"


@dataclass(frozen=True)
class DataLayout:
    """Questions and corpus as they were when the run began."""

    folder: str

    def split(self, name: str) -> str:
        return f"{self.folder}/{name}.parquet"

    @property
    def corpus(self) -> str:
        return f"{self.folder}/corpus.parquet"


@dataclass(frozen=True)
class RoundLayout:
    """One set of prompts, or the questions of an evaluation, with their trajectories and rewards."""

    folder: str

    @property
    def prompts(self) -> str:
        return f"{self.folder}/prompts.parquet"

    @property
    def trajectories(self) -> str:
        return f"{self.folder}/{TRAJECTORIES}"

    @property
    def unfinished(self) -> str:
        """Folder of single trajectories, until they are merged into one table."""
        return f"{self.folder}/trajectories"

    def single(self, trajectory: str) -> str:
        """A single trajectory, by its id."""
        return f"{self.unfinished}/{trajectory}.parquet"

    @property
    def rewards(self) -> str:
        return f"{self.folder}/rewards.parquet"

    @property
    def selection(self) -> str:
        return f"{self.folder}/selection.parquet"

    @classmethod
    def holding(cls, key: str) -> "RoundLayout":
        """The layout of the round to which a table with this key belongs."""
        return cls(key.rpartition("/")[0])


@dataclass(frozen=True)
class IterationLayout:
    folder: str

    def round(self, number: int) -> RoundLayout:
        return RoundLayout(f"{self.folder}/round-{number}")

    @property
    def advantages(self) -> str:
        return f"{self.folder}/advantages.parquet"

    @property
    def update_result(self) -> str:
        return f"{self.folder}/update/result.json"

    @property
    def record(self) -> str:
        return f"{self.folder}/record.json"


@dataclass(frozen=True)
class RunLayout:
    name: str

    @property
    def folder(self) -> str:
        return f"{RUNS}/{self.name}"

    @property
    def identity(self) -> str:
        return f"{self.folder}/run.json"

    @property
    def config(self) -> str:
        return f"{self.folder}/config.yaml"

    @property
    def summary(self) -> str:
        return f"{self.folder}/summary.json"

    @property
    def curve(self) -> str:
        return f"{self.folder}/learning-curve.png"

    @property
    def data(self) -> DataLayout:
        return DataLayout(f"{self.folder}/data")

    @property
    def iterations(self) -> str:
        return f"{self.folder}/iterations"

    @property
    def evaluations(self) -> str:
        return f"{self.folder}/evaluations"

    def iteration(self, number: int) -> IterationLayout:
        return IterationLayout(f"{self.iterations}/{number:06d}")

    def evaluation(self, updates: int) -> RoundLayout:
        """The evaluation of the policy that `updates` updates made."""
        return RoundLayout(f"{self.evaluations}/{updates:06d}")

    def checkpoint(self, updates: int) -> str:
        """Folder of the checkpoint that `updates` updates made."""
        return f"{self.folder}/checkpoints/{updates:06d}"


@dataclass(frozen=True)
class EvaluationLayout:
    """An evaluation that belongs to no run."""

    name: str

    @property
    def folder(self) -> str:
        return f"{EVALUATIONS}/{self.name}"

    @property
    def data(self) -> DataLayout:
        return DataLayout(f"{self.folder}/data")

    @property
    def round(self) -> RoundLayout:
        return RoundLayout(self.folder)


def is_trajectories(key: str) -> bool:
    """Whether the key is a round's table of trajectories."""
    return key.endswith(f"/{TRAJECTORIES}")


def updates_of(checkpoint: str) -> int:
    """Updates that made the checkpoint in this folder."""
    return int(checkpoint.rpartition("/")[2])


def place_of(trajectories: str) -> str:
    """`iter 3` or `eval 3`, to which a table of trajectories belongs; empty for an evaluation outside any run."""
    between = trajectories.split("/")[2:-1]
    return f"{between[0][:4]} {int(between[1])}" if between else ""


def name_of(key: str) -> str:
    """Name of the run or evaluation that a key belongs to."""
    return key.split("/")[1]
