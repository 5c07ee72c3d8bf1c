"""Demonstrations from files of trajectories: nbrl's Parquet tables, notebooks that it saved, trajectories as JSON."""

import asyncio
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from nbrl.agent.errors import RecordingError
from nbrl.agent.notebook.recording import read
from nbrl.agent.trajectory import SCHEMA, Trajectory, from_table
from nbrl.tasks.errors import ConfigError, fault_in_words
from nbrl.tasks.warmstart.demonstrators.play import Stage
from nbrl.tasks.warmstart.sources.retell import retold
from nbrl.tasks.warmstart.sources.source import Found, Source

SUFFIXES = (".parquet", ".ipynb", ".json")


class RecordedDemonstrations(Source):
    """Recorded trajectories. All that they did is learnt, so give good ones."""

    kind: Literal["recorded"] = Field(description="recorded trajectories; all that they did is learnt, so give good ones")
    path: Path = Field(
        description="a table of trajectories (.parquet), a notebook (.ipynb) or a trajectory (.json) that nbrl saved, or a "
        "folder of such files"
    )

    def check(self) -> None:
        self._files()

    def record(self, stage: Stage, seed: int) -> Found:
        recorded = [trajectory for file in self._files() for trajectory in _read(file)]
        ended = [
            each.model_copy(update={"id": f"{number}-{each.id}"}) for number, each in enumerate(recorded) if not each.failure
        ]
        found = asyncio.run(retold(ended, stage))
        return Found(found.trajectories, found.left_out + len(recorded) - len(ended))

    def _files(self) -> list[Path]:
        if self.path.is_dir():
            if files := sorted(path for path in self.path.iterdir() if path.suffix in SUFFIXES and path.is_file()):
                return files
            raise ConfigError(f"{self.path} has no files of trajectories; they end in {', '.join(SUFFIXES)}")
        if not self.path.is_file():
            raise ConfigError(f"there are no demonstrations {self.path}; give a file or a folder of trajectories")
        if self.path.suffix not in SUFFIXES:
            raise ConfigError(f"{self.path} is no file of trajectories; they end in {', '.join(SUFFIXES)}")
        return [self.path]


def _read(path: Path) -> list[Trajectory]:
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            lacks = [name for name in ("id", "question", "nodes", "steps") if name not in table.column_names]
            if lacks:
                raise ConfigError(f"{path} is no table of trajectories: it lacks {lacks[0]}, and has {table.column_names}")
            return from_table(table.select([name for name in SCHEMA.names if name in table.column_names]))
        return [read(path.read_bytes())]
    except ValidationError as error:
        raise ConfigError(f"{path} is no table of trajectories: {fault_in_words(error)}") from error
    except (RecordingError, pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
