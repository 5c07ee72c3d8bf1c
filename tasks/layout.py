"""Every key below a storage root, where runs and evaluations store their results.

Keys are relative and use `/`. Keys of tables, files and folders are defined only in this module. What an iteration or an
evaluation makes lies below the epoch that made it, so that two processes never write the same key; results and records name
what counts.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

RUNS: Literal["runs"] = "runs"
EVALUATIONS: Literal["evaluations"] = "evaluations"
JUDGEMENTS, CHAMPIONS, RETIRED = "judgements", "champions", "retired.parquet"
TRAJECTORIES, CHUNKS, UPDATE_RESULT = "trajectories.index.parquet", "trajectories", "update.json"
TRAJECTORIES_IN_ONE = "trajectories.parquet"  # how releases wrote them that had no parts
# Below a checkpoint: states to resume from, the model to serve, its LoRA adapter in peft's format, the result of the order, and
# the learner's log-probs of the tokens that it was made from.
STATE, CRITIC, HF, ADAPTER, RESULT, TOKEN_LOGPROBS = "state", "critic", "hf", "adapter", "result.json", "logprobs.parquet"

EPOCH = re.compile(r"e\d{4,}-[0-9a-f]{6}")
CHUNK = re.compile(rf"/round-\d+/{CHUNKS}/")


@dataclass(frozen=True)
class DataLayout:
    """Questions and corpus as they were when the run began."""

    folder: str

    def split(self, name: str) -> str:
        return f"{self.folder}/{name}.parquet"

    def corpus(self, environment: str = "") -> str:
        """The passages of an environment; without a name, those of a run that a release before environments began."""
        return f"{self.folder}/corpus/{environment}.parquet" if environment else f"{self.folder}/corpus.parquet"

    @property
    def attached_folder(self) -> str:
        """Folder of the files that questions come with."""
        return f"{self.folder}/attached"

    def attached(self, digest: str) -> str:
        return f"{self.attached_folder}/{digest}"

    @property
    def digests(self) -> str:
        """The SHA-256 of the tables, written after them."""
        return f"{self.folder}/digests.json"


@dataclass(frozen=True)
class RoundLayout:
    """One set of prompts, or the questions of an evaluation, with their trajectories and rewards."""

    folder: str

    @property
    def prompts(self) -> str:
        return f"{self.folder}/prompts.parquet"

    @property
    def trajectories(self) -> str:
        """Index of the table whose parts are chunks."""
        return f"{self.folder}/{TRAJECTORIES}"

    @property
    def trajectories_in_one(self) -> str:
        """Where releases wrote the whole table that had no parts."""
        return f"{self.folder}/{TRAJECTORIES_IN_ONE}"

    @property
    def all_chunks(self) -> str:
        """Folder of the chunks of finished trajectories."""
        return f"{self.folder}/{CHUNKS}"

    def chunks(self, policy: str) -> str:
        """Folder of those that the policy with this digest sampled; the initial one has none."""
        return f"{self.all_chunks}/{policy_folder(policy)}"

    @property
    def rewards(self) -> str:
        return f"{self.folder}/rewards.parquet"

    @property
    def selection(self) -> str:
        return f"{self.folder}/selection.parquet"

    @property
    def retired(self) -> str:
        """The questions that are not asked again, of this round and all before it."""
        return f"{self.folder}/{RETIRED}"

    @classmethod
    def holding(cls, key: str) -> "RoundLayout":
        """The layout of the round to which a table with this key belongs."""
        return cls(key.rpartition("/")[0])


@dataclass(frozen=True)
class StageLayout:
    """One iteration or one evaluation of a run, as the epoch `epoch` writes it."""

    folder: str
    epoch: str

    def round(self, number: int) -> RoundLayout:
        return RoundLayout(f"{self.folder}/{self.epoch}/round-{number}")

    def has_chunk(self, key: str) -> bool:
        """Whether the key is one of a chunk of this stage, of any epoch."""
        return key.startswith(f"{self.folder}/") and is_chunk(key)

    def earlier_chunks(self, number: int, policy: str, keys: Iterable[str]) -> tuple[str, ...]:
        """Folders, of those with `keys`, in which other epochs left chunks of a round that this policy sampled."""
        mine = self.round(number).chunks(policy)
        same = mine.removeprefix(f"{self.folder}/{self.epoch}")
        folders = {key.rpartition("/")[0] for key in keys if self.has_chunk(key)}
        return tuple(sorted(folder for folder in folders - {mine} if folder.endswith(same)))

    def epoch_of(self, key: str) -> str:
        """The epoch below whose name the key lies; empty for results, records and what releases before epochs wrote."""
        name = key.removeprefix(f"{self.folder}/").partition("/")[0]
        return name if EPOCH.fullmatch(name) else ""

    @property
    def advantages(self) -> str:
        return f"{self.folder}/{self.epoch}/advantages.parquet"

    @property
    def update_result(self) -> str:
        return f"{self.folder}/{self.epoch}/{UPDATE_RESULT}"

    @property
    def token_logprobs(self) -> str:
        """The learner's log-probs of the tokens of the trajectories that it trained on."""
        return f"{self.folder}/{self.epoch}/{TOKEN_LOGPROBS}"

    @property
    def results(self) -> str:
        """Folder of the results of nodes."""
        return f"{self.folder}/nodes"

    def result(self, node: str, inputs: str) -> str:
        """The result of a node for inputs with this digest."""
        return f"{self.results}/{node}-{inputs[:16]}.json"

    @property
    def record(self) -> str:
        return f"{self.folder}/record.json"

    @property
    def record_copy(self) -> str:
        """A second copy of the record, written after it, from which a damaged one is brought back."""
        return f"{self.folder}/record-copy.json"


@dataclass(frozen=True)
class RunLayout:
    name: str

    @property
    def folder(self) -> str:
        return f"{RUNS}/{self.name}"

    @property
    def title(self) -> str:
        """What sentences call it."""
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
        """Which MLflow has the finished run."""
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
        """What was put aside last to be done again."""
        return f"{self.folder}/redo.json"

    @property
    def lease(self) -> str:
        return f"{self.folder}/lease.json"

    @property
    def logs(self) -> str:
        """Folder of what each start said, below the names of their epochs."""
        return f"{self.folder}/logs"

    def log(self, epoch: str) -> str:
        """Folder of the lines that the process of this epoch printed, and of the logs of what it started."""
        return f"{self.logs}/{epoch}"

    def stop(self, epoch: str) -> str:
        """The mark that asks the process of this epoch to stop."""
        return f"{self.folder}/stops/{epoch}.json"

    def redone(self, key: str, epoch: str) -> str:
        """Where a result, record or summary goes that `epoch` makes again."""
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
        """The evaluation of the policy that `updates` updates made."""
        return StageLayout(f"{self.evaluations}/{updates:06d}", epoch)

    @property
    def checkpoints(self) -> str:
        return f"{self.folder}/checkpoints"

    def checkpoint(self, updates: int, epoch: str) -> str:
        """Folder of the checkpoint that `updates` updates made."""
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
        """Which model is evaluated."""
        return f"{self.folder}/subject.json"

    @property
    def answers(self) -> str:
        """One row for each sample of each question."""
        return f"{self.folder}/answers.parquet"

    @property
    def report(self) -> str:
        return f"{self.folder}/report.md"

    @property
    def told(self) -> str:
        """Written once Prefect was told that it has finished."""
        return f"{self.folder}/told.json"

    @property
    def earlier_rewards(self) -> str:
        """The rewards of an evaluation that a release made which could not continue one."""
        return RoundLayout(self.folder).rewards


def layout_of(kind: str, name: str) -> RunLayout:
    """The layout of a run or, where `kind` is EVALUATIONS, of an evaluation of its own."""
    return EvaluationLayout(name) if kind == EVALUATIONS else RunLayout(name)


def judgement(digest: str) -> str:
    """What a model said of an answer, by the digest of all that it was asked; all runs and evaluations share it."""
    return f"{JUDGEMENTS}/{digest[:2]}/{digest}.json"


def champion_of(recipe: str) -> str:
    """Which checkpoint somebody chose among those of all runs of a recipe."""
    return f"{CHAMPIONS}/{recipe}.json"


def rewards_of(trajectories: str, keys: Collection[str]) -> str | None:
    """Key of the rewards of a table of trajectories, which may be of a later epoch; the newest if there are several."""
    beside = RoundLayout.holding(trajectories).rewards
    if beside in keys:
        return beside
    parts = trajectories.split("/")
    stage, last = "/".join(parts[:4]), "/".join([parts[-2], beside.rpartition("/")[2]])
    return max((key for key in keys if key.startswith(f"{stage}/") and key.endswith(f"/{last}")), default=None)


def logprobs_of(trajectories: str, keys: Collection[str]) -> str | None:
    """Key of the learner's log-probs of the tokens of a table of trajectories; the newest if several epochs made an update."""
    stage, epoch = trajectories.split("/")[:4], trajectories.split("/")[4:5]
    mine = "/".join([*stage, *epoch, TOKEN_LOGPROBS])
    if mine in keys:
        return mine
    return max(
        (key for key in keys if key.startswith("/".join([*stage, ""])) and key.endswith(f"/{TOKEN_LOGPROBS}")), default=None
    )


def policy_folder(policy: str) -> str:
    """Name of the folder of chunks that the policy with this digest sampled."""
    return policy[:16] or "initial"


def is_chunk(key: str) -> bool:
    """Whether the key is one of a chunk of trajectories: a part of a round's table, or what was finished of one."""
    return CHUNK.search(key) is not None


def chunk(folder: str, name: str) -> str:
    """A chunk of finished trajectories in a folder of them."""
    return f"{folder}/{name}.parquet"


def is_trajectories(key: str) -> bool:
    """Whether the key is a round's table of trajectories."""
    return key.endswith((f"/{TRAJECTORIES}", f"/{TRAJECTORIES_IN_ONE}"))


def is_update_result(key: str) -> bool:
    """Whether the key is of what an update reports, which it stores beside its checkpoint."""
    return key.endswith(f"/{UPDATE_RESULT}")


def initial_policy(digest: str) -> str:
    """Folder of a model that runs begin from, by its content; only clusters of several machines need it."""
    return f"policies/{digest}"


def initial_texts(digest: str) -> str:
    """Folder of the same model without its weights."""
    return f"policies/{digest}-texts"


def updates_of(checkpoint: str) -> int:
    """Updates that made the checkpoint in this folder."""
    return int(checkpoint.rpartition("/")[2].partition("-")[0])


def has_manifest(checkpoint: str) -> bool:
    """Whether the checkpoint in this folder was written with a manifest; releases before epochs wrote none to local folders."""
    return "-" in checkpoint.rpartition("/")[2]


def place_of(trajectories: str) -> str:
    """`iter 3`, counted from 1, or `eval 3`, after 3 updates, to which a table of trajectories belongs.

    Empty for an evaluation outside any run.
    """
    if (stage := stage_of(trajectories)) is None:
        return ""
    held_out, number = stage
    return f"eval {number}" if held_out else f"iter {number}"


def stage_of(trajectories: str) -> tuple[bool, int] | None:
    """Whether a run's table of trajectories is of an evaluation, with its updates, or of an iteration, counted from 1."""
    kind, _, *between = trajectories.split("/")[:-1]
    if kind != RUNS or not between:
        return None
    held_out = between[0] == "evaluations"
    return held_out, int(between[1]) + (not held_out)


def name_of(key: str) -> str:
    """Name of the run or evaluation that a key belongs to."""
    return key.split("/")[1]
