"""Results of stages: Parquet files named by a digest of all that decides them, so that a finished stage is never done again."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.prepare.folder import STAGES

VERSION = 1  # of the stages' code: a higher number has all stages done again


class Made(BaseModel):
    """A stage's result: a table in the storage with all rows that came in, each dropped one with its reason."""

    model_config = ConfigDict(frozen=True)

    stage: str
    path: str
    digest: str  # SHA-256 of the file


class Stages:
    """The finished stages of one preparation."""

    def __init__(self, storage: Storage, say: Callable[[str], None]) -> None:
        self._storage, self._say = storage, say

    def find(self, stage: str, decides: Any, inputs: Sequence[Made]) -> Made | None:
        """What the stage made earlier; None, and nothing is left of it, if that is lost or damaged."""
        name = _name(stage, decides, inputs)
        try:
            made = Made(**self._storage.read_json(f"{name}.json"))
            self._storage.read_bytes(made.path, made.digest)
        except MissingError:
            return None
        except DamagedError as error:
            self._say(f"nbrl: {stage} is done again: {str(error).partition(';')[0]}")
            self._storage.delete_keys([f"{name}.json", f"{name}.parquet"])
            return None
        return made

    def keep(self, stage: str, decides: Any, inputs: Sequence[Made], table: pa.Table) -> Made:
        name = _name(stage, decides, inputs)
        digest = self._storage.write_table(f"{name}.parquet", table.combine_chunks())
        made = Made(stage=stage, path=f"{name}.parquet", digest=digest)
        self._storage.write_json(f"{name}.json", made.model_dump())
        return made

    def read(self, made: Made) -> pa.Table:
        """All rows, with the reasons of the dropped ones."""
        return self._storage.read_table(made.path, made.digest)


def check_whole(stage: str, before: pa.Table, after: pa.Table) -> None:
    """Raises BrokenInvariantError unless a stage gave back every row that it took: none disappears without a reason."""
    if not before["id"].combine_chunks().equals(after["id"].combine_chunks()):
        raise BrokenInvariantError(
            f"the stage {stage} took {len(before)} rows and gave back others ({len(after)}); this is a fault of nbrl"
        )


def _name(stage: str, decides: Any, inputs: Sequence[Made]) -> str:
    content = {"stage": stage, "version": VERSION, "decides": decides, "inputs": [made.digest for made in inputs]}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{STAGES}/{stage}-{digest[:16]}"
