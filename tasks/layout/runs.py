"""Keys of a run and of an evaluation of its own."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from nbrl.tasks.layout.stages import StageLayout, policy_folder

RUNS: Literal["runs"] = "runs"
EVALUATIONS: Literal["evaluations"] = "evaluations"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
JUDGEMENTS, CHAMPIONS = "judgements", "champions"


@dataclass(frozen=True)
class DataLayout:
    """Questions and corpus as they were when the run began."""

    folder: str

    def split(self, name: str) -> str:
        return f"{self.folder}/{name}.parquet"

    def corpus(self, environment: str) -> str:
        """Return the passages of an environment."""
        return f"{self.folder}/corpus/{environment}.parquet"

    @property
    def attached_folder(self) -> str:
        """Return the folder of the files that questions come with."""
        return f"{self.folder}/attached"

    def attached(self, digest: str) -> str:
        return f"{self.attached_folder}/{digest}"

    @property
    def digests(self) -> str:
        """Return the key of the SHA-256 of the tables, which are written after them."""
        return f"{self.folder}/digests.json"


@dataclass(frozen=True)
class RunLayout:
    name: str

    @property
    def folder(self) -> str:
        return f"{RUNS}/{self.name}"

    @property
    def title(self) -> str:
        """Return its name in sentences."""
        return f"run {self.name!r}"

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
    def delivered(self) -> str:
        """Return the key that says which MLflow has the finished run."""
        return f"{self.folder}/delivered.json"

    @property
    def curve(self) -> str:
        return f"{self.folder}/learning-curve.png"

    @property
    def data(self) -> DataLayout:
        return DataLayout(f"{self.folder}/data")

    @property
    def epochs(self) -> str:
        return f"{self.folder}/epochs"

    def epoch(self, name: str) -> str:
        return f"{self.epochs}/{name}.json"

    @property
    def pins(self) -> str:
        return f"{self.folder}/pins"

    @property
    def redo(self) -> str:
        """Return the key of what was last put aside to be done again."""
        return f"{self.folder}/redo.json"

    @property
    def lease(self) -> str:
        return f"{self.folder}/lease.json"

    @property
    def logs(self) -> str:
        """Return the folder of the logs of each start, below the names of their epochs."""
        return f"{self.folder}/logs"

    def log(self, epoch: str) -> str:
        """Return the folder of the lines that the process of this epoch printed, and of the logs of what it started."""
        return f"{self.logs}/{epoch}"

    def stop(self, epoch: str) -> str:
        """Return the mark that asks the process of this epoch to stop."""
        return f"{self.folder}/stops/{epoch}.json"

    def redone(self, key: str, epoch: str) -> str:
        """Return the key to which a result, record or summary moves that `epoch` makes again."""
        stage = "/".join(key.split("/")[:4]) if key.startswith(f"{self.iterations}/") else self.folder
        return f"{stage}/redone-{epoch}/{key.removeprefix(f'{stage}/')}"

    @property
    def iterations(self) -> str:
        return f"{self.folder}/iterations"

    @property
    def evaluations(self) -> str:
        return f"{self.folder}/evaluations"

    def iteration(self, number: int, epoch: str = "") -> StageLayout:
        return StageLayout(f"{self.iterations}/{number:06d}", epoch)

    def evaluation(self, updates: int, epoch: str = "") -> StageLayout:
        """Return the evaluation of the policy that `updates` updates made."""
        return StageLayout(f"{self.evaluations}/{updates:06d}", epoch)

    def stream(self, epoch: str = "") -> StageLayout:
        """Return where the trajectories of a stream lie until a batch has them."""
        return StageLayout(f"{self.folder}/stream", epoch)

    @property
    def checkpoints(self) -> str:
        return f"{self.folder}/checkpoints"

    @property
    def all_sessions(self) -> str:
        return f"{self.folder}/sessions"

    def sessions(self, updates: int, policy: str) -> str:
        """Return the folder of the sessions of agents elsewhere that the policy with this digest answered."""
        return f"{self.all_sessions}/{updates:06d}-{policy_folder(policy)}"

    def checkpoint(self, updates: int, epoch: str) -> str:
        """Return the folder of the checkpoint that `updates` updates made."""
        return f"{self.checkpoints}/{updates:06d}-{epoch}"


@dataclass(frozen=True)
class EvaluationLayout(RunLayout):
    """An evaluation of its own. It is kept as a run of no iterations is, so that it is continued in the same way."""

    @property
    def folder(self) -> str:
        return f"{EVALUATIONS}/{self.name}"

    @property
    def title(self) -> str:
        return f"evaluation {self.name!r}"

    @property
    def subject(self) -> str:
        """Return the key that says which model is evaluated."""
        return f"{self.folder}/subject.json"

    @property
    def answers(self) -> str:
        """Return the key of the answers, one row for each sample of each question."""
        return f"{self.folder}/answers.parquet"

    @property
    def report(self) -> str:
        return f"{self.folder}/report.md"

    @property
    def reported(self) -> str:
        """Return the key that is written once Prefect knows that it has finished."""
        return f"{self.folder}/told.json"


def layout_of(kind: str, name: str) -> RunLayout:
    """Return the layout of a run or, where `kind` is EVALUATIONS, of an evaluation of its own."""
    return EvaluationLayout(name) if kind == EVALUATIONS else RunLayout(name)


def place_of(trajectories: str) -> str:
    """Return `iter 3`, counted from 1, or `eval 3`, after 3 updates, to which a table of trajectories belongs.

    Empty for an evaluation outside any run.
    """
    if (stage := stage_of(trajectories)) is None:
        return ""
    held_out, number = stage
    return f"eval {number}" if held_out else f"iter {number}"


def title_of(trajectories: str) -> str:
    """Return in words to which iteration or evaluation a table of trajectories belongs."""
    if (stage := stage_of(trajectories)) is None:
        return "evaluation"
    held_out, number = stage
    if not held_out:
        return f"iteration {number}"
    return f"evaluation after {number} update{'s' * (number != 1)}" if number else "evaluation before the first update"


def stage_of(trajectories: str) -> tuple[bool, int] | None:
    """Return whether a run's table of trajectories is of an evaluation, with its updates, or of an iteration, counted from 1."""
    kind, _, *between = trajectories.split("/")[:-1]
    if kind != RUNS or not between:
        return None
    held_out = between[0] == "evaluations"
    return held_out, int(between[1]) + (not held_out)


def name_of(key: str) -> str:
    """Name of the run or evaluation that a key belongs to."""
    return key.split("/")[1]


def run_names(keys: Iterable[str]) -> list[str]:
    """Return names of the runs or evaluations that keys belong to, sorted. A folder of a name that none can have is none."""
    return sorted(name for name in {name_of(key) for key in keys} if NAME.fullmatch(name))


def judgement(digest: str) -> str:
    """Return the key of a model's grade of an answer, by the digest of the whole request; all runs and evaluations share it."""
    return f"{JUDGEMENTS}/{digest[:2]}/{digest}.json"


def lies_below(key: str, folder: str) -> bool:
    """Return whether a key names something in a folder; all keys lie below the empty one."""
    parts = key.split("/")
    return key.startswith(f"{folder}/" if folder else "") and not {"", ".", ".."}.intersection(parts)


def champion_of(recipe: str) -> str:
    """Return the key of the champion among the checkpoints of all runs of a recipe."""
    return f"{CHAMPIONS}/{recipe}.json"
