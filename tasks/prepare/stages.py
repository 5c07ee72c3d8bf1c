"""Results of stages: Parquet files named by a digest of all that decides them, so that a finished stage is never done again."""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import file_sha256
from nbrl.infra.storage import Storage, StorageSettings, sha256
from nbrl.tasks.errors import BrokenInvariantError, ConfigError
from nbrl.tasks.evaluation import summary
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.prepare.settings import DifficultySettings, PrepareSettings
from nbrl.tasks.runs.decisive import decisive

Identity = dict[str, Any]
SHOWN_CHARS = 60  # of a value
PREPARATION, LOCK = "preparation.json", ".lock"
ANSWERS = "difficulty.answers"
STAGES = "stages"
SHOWN = 3  # differences named at once
VERSION = 1  # of the stages' code: a higher number has all stages done again


def identity(settings: PrepareSettings) -> Identity:
    """Return what decides the prepared data: settings by dotted key, and the SHA-256 of files and of an evaluation's answers."""
    leaves = decisive(settings)
    for kind, files in (("sources", settings.sources), ("evaluation", settings.evaluation)):
        leaves[kind] = [file.name for file in files]
        for file in files:
            leaves[f"{kind}.{file.name}"] = file.model_dump(mode="json") | {"sha256": file_sha256(file.path)}
    if settings.difficulty is not None:
        leaves[ANSWERS] = sha256(read_answers(settings.difficulty))
    return leaves


def read_answers(settings: DifficultySettings) -> bytes:
    """Return the Parquet file of the evaluation's answers. Raises ConfigError if no evaluation of this name is finished."""
    storage = Storage(StorageSettings(root=settings.root))
    if summary.read(storage, settings.evaluation) is None:
        raise ConfigError(
            f"difficulty.evaluation: there is no finished evaluation {settings.evaluation!r} in {settings.root}; make it by "
            f"`nbrl evaluate … --samples 8 --name {settings.evaluation}`, or correct difficulty.root"
        )
    return storage.read_bytes(EvaluationLayout(settings.evaluation).answers)


def differences(began: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for each key in which two preparations differ."""
    return [
        f"{key} is {_shown(now.get(key))}, it was {_shown(began.get(key))}"
        for key in dict.fromkeys([*now, *began])
        if now.get(key) != began.get(key)
    ]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def check_folder(folder: Path, wanted: Identity) -> None:
    """Raises ConfigError unless the folder is empty, does not exist yet, or holds this very preparation."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file; name a folder")
    storage = Storage(StorageSettings(root=str(folder)))
    if storage.exists(PREPARATION):
        if differs := differences(storage.read_json(PREPARATION), wanted):
            raise ConfigError(
                f"{folder} holds another preparation: {'; '.join(differs[:SHOWN])}. Choose another --out; `ratings` can name "
                f"{folder}, so that no rating is paid for twice"
            )
    elif folder.is_dir() and (others := [each.name for each in folder.iterdir() if not each.name.startswith(".")]):
        raise ConfigError(f"{folder} holds other files, such as {sorted(others)[0]!r}; choose an empty folder or a new one")


@contextmanager
def opened(folder: Path, wanted: Identity) -> Iterator[Storage]:
    """The folder as a storage, for this process alone. Raises ConfigError as `check_folder` does, or if it is in use."""
    check_folder(folder, wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written to: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process prepares data in {folder}; wait for it, or choose another --out") from error
        storage = Storage(StorageSettings(root=str(folder)))
        storage.create_json(PREPARATION, wanted)
        yield storage


class StageResult(BaseModel):
    """A stage's result: a table in the storage with all rows that came in, each dropped one with its reason."""

    model_config = ConfigDict(frozen=True)

    stage: str
    path: str
    digest: str  # SHA-256 of the file


class Stages:
    """The finished stages of one preparation."""

    def __init__(self, storage: Storage, say: Callable[[str], None]) -> None:
        self._storage, self._say = storage, say

    def find(self, stage: str, decides: Any, inputs: Sequence[StageResult]) -> StageResult | None:
        """Return what the stage made earlier; None, and nothing is left of it, if that is lost or damaged."""
        name = _name(stage, decides, inputs)
        try:
            made = StageResult(**self._storage.read_json(f"{name}.json"))
            self._storage.read_bytes(made.path, made.digest)
        except MissingError:
            return None
        except DamagedError as error:
            self._say(f"nbrl: {stage} is done again: {str(error).partition(';')[0]}")
            self._storage.delete_keys([f"{name}.json", f"{name}.parquet"])
            return None
        return made

    def keep(self, stage: str, decides: Any, inputs: Sequence[StageResult], table: pa.Table) -> StageResult:
        name = _name(stage, decides, inputs)
        digest = self._storage.write_table(f"{name}.parquet", table.combine_chunks())
        made = StageResult(stage=stage, path=f"{name}.parquet", digest=digest)
        self._storage.write_json(f"{name}.json", made.model_dump())
        return made

    def read(self, made: StageResult) -> pa.Table:
        """Return all rows, with the reasons of the dropped ones."""
        return self._storage.read_table(made.path, made.digest)


def check_whole(stage: str, before: pa.Table, after: pa.Table) -> None:
    """Raises BrokenInvariantError unless a stage gave back every row that it took: none disappears without a reason."""
    if not before["id"].combine_chunks().equals(after["id"].combine_chunks()):
        raise BrokenInvariantError(
            f"the stage {stage} took {len(before)} rows and gave back others ({len(after)}); this is a fault of nbrl"
        )


def _name(stage: str, decides: Any, inputs: Sequence[StageResult]) -> str:
    content = {"stage": stage, "version": VERSION, "decides": decides, "inputs": [made.digest for made in inputs]}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{STAGES}/{stage}-{digest[:16]}"
