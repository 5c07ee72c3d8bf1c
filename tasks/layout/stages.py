"""Keys of what an iteration or an evaluation makes: prompts, trajectories, rewards and results of its nodes."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from nbrl.tasks.layout.checkpoints import TOKEN_LOGPROBS

TRAJECTORIES, CHUNKS = "trajectories.index.parquet", "trajectories"
RETIRED, PASS_RATES, TEACHER, TRUNKS = "retired.parquet", "pass_rates.parquet", "teacher.parquet", "trunks.index.parquet"
IN_FLIGHT = "in_flight.parquet"
UPDATE_RESULT, MERGED = "update.json", "nodes.json"

EPOCH = re.compile(r"e\d{4,}-[0-9a-f]{6}")
CHUNK = re.compile(rf"/round-\d+/{CHUNKS}/")


def of_node(key: str) -> bool:
    """Return whether a key is of a node's result, whatever its run is named."""
    return key.split("/")[4:5] == ["nodes"]


@dataclass(frozen=True)
class RoundLayout:
    """One set of prompts, or the questions of an evaluation, with their trajectories and rewards."""

    folder: str

    @property
    def prompts(self) -> str:
        return f"{self.folder}/prompts.parquet"

    @property
    def trajectories(self) -> str:
        """Return the key of the index of the table whose parts are chunks."""
        return f"{self.folder}/{TRAJECTORIES}"

    @property
    def trunks(self) -> str:
        """Return the key of the index of the trajectories of a round before some are branched."""
        return f"{self.folder}/{TRUNKS}"

    @property
    def all_chunks(self) -> str:
        """Return the folder of the chunks of finished trajectories."""
        return f"{self.folder}/{CHUNKS}"

    def chunks(self, policy: str) -> str:
        """Return the folder of the chunks that the policy with this digest sampled; the initial one has none."""
        return f"{self.all_chunks}/{policy_folder(policy)}"

    @property
    def rewards(self) -> str:
        return f"{self.folder}/rewards.parquet"

    @property
    def selection(self) -> str:
        return f"{self.folder}/selection.parquet"

    @property
    def retired(self) -> str:
        """Return the key of the questions that are not asked again, of this round and all before it."""
        return f"{self.folder}/{RETIRED}"

    @property
    def pass_rates(self) -> str:
        """Return the key of the last pass rates of all questions that were asked up to this round."""
        return f"{self.folder}/{PASS_RATES}"

    @property
    def in_flight(self) -> str:
        """Return the key of the groups of a stream that were sampled when a batch had been admitted."""
        return f"{self.folder}/{IN_FLIGHT}"

    @classmethod
    def holding(cls, key: str) -> "RoundLayout":
        """Return the layout of the round to which a table with this key belongs."""
        return cls(key.rpartition("/")[0])


@dataclass(frozen=True)
class StageLayout:
    """One iteration or one evaluation of a run, as the epoch `epoch` writes it."""

    folder: str
    epoch: str

    def round(self, number: int) -> RoundLayout:
        return RoundLayout(f"{self.folder}/{self.epoch}/round-{number}")

    def has_chunk(self, key: str) -> bool:
        """Return whether the key is one of a chunk of this stage, of any epoch."""
        return key.startswith(f"{self.folder}/") and is_chunk(key)

    def earlier_chunks(self, number: int, policy: str, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the folders, of those with `keys`, in which other epochs left chunks of a round that this policy sampled."""
        mine = self.round(number).chunks(policy)
        same = mine.removeprefix(f"{self.folder}/{self.epoch}")
        folders = {key.rpartition("/")[0] for key in keys if self.has_chunk(key)}
        return tuple(sorted(folder for folder in folders - {mine} if folder.endswith(same)))

    def epoch_of(self, key: str) -> str:
        """Return the epoch below whose name the key lies; empty for results and records."""
        name = key.removeprefix(f"{self.folder}/").partition("/")[0]
        return name if EPOCH.fullmatch(name) else ""

    @property
    def advantages(self) -> str:
        return f"{self.folder}/{self.epoch}/advantages.parquet"

    @property
    def teacher(self) -> str:
        """Return the key of the teacher's log-probs of the tokens that are learned from."""
        return f"{self.folder}/{self.epoch}/{TEACHER}"

    @property
    def update_result(self) -> str:
        return f"{self.folder}/{self.epoch}/{UPDATE_RESULT}"

    @property
    def token_logprobs(self) -> str:
        """Return the key of the learner's log-probs of the tokens of the trajectories that it trained on."""
        return f"{self.folder}/{self.epoch}/{TOKEN_LOGPROBS}"

    @property
    def results(self) -> str:
        """Return the folder of the results of nodes."""
        return f"{self.folder}/nodes"

    def result(self, node: str, inputs: str) -> str:
        """Return the result of a node for inputs with this digest."""
        return f"{self.results}/{node}-{inputs[:16]}.json"

    @property
    def merged_results(self) -> str:
        """Return the key of one object with the results of all nodes, once the iteration is finished."""
        return f"{self.folder}/{MERGED}"

    @property
    def record(self) -> str:
        return f"{self.folder}/record.json"

    @property
    def record_copy(self) -> str:
        """Return the key of a second copy of the record, written after it, from which a damaged one is brought back."""
        return f"{self.folder}/record-copy.json"


def rewards_of(trajectories: str, keys: Collection[str]) -> str | None:
    """Return the key of the newest rewards of a table of trajectories, which may be of a later epoch."""
    beside = RoundLayout.holding(trajectories).rewards
    if beside in keys:
        return beside
    parts = trajectories.split("/")
    stage, last = "/".join(parts[:4]), "/".join([parts[-2], beside.rpartition("/")[2]])
    return max((key for key in keys if key.startswith(f"{stage}/") and key.endswith(f"/{last}")), default=None)


def logprobs_of(trajectories: str, keys: Collection[str]) -> str | None:
    """Return the key of the learner's newest log-probs of the tokens of a table of trajectories."""
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
    """Return whether the key is one of a chunk of trajectories: a part of a round's table, or what was finished of one."""
    return CHUNK.search(key) is not None


def chunk(folder: str, name: str) -> str:
    """Return a chunk of finished trajectories in a folder of them."""
    return f"{folder}/{name}.parquet"


def is_trajectories(key: str) -> bool:
    """Return whether the key is a round's table of trajectories."""
    return key.endswith(f"/{TRAJECTORIES}")


def is_update_result(key: str) -> bool:
    """Return whether the key is of what an update reports, which it stores beside its checkpoint."""
    return key.endswith(f"/{UPDATE_RESULT}")
