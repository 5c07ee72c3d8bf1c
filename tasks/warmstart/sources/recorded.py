"""Demonstrations from files of trajectories: nbrl's Parquet tables, notebooks that it saved, trajectories as JSON."""

import asyncio
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pydantic import Field, ValidationError

from nbrl.agent.errors import RecordingError
from nbrl.agent.notebook.recording import read
from nbrl.agent.trajectory import SCHEMA, Trajectory, from_table
from nbrl.infra.arrow_files import read_parquet
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
        if not sum(len(_read(file)) for file in self.files()):
            raise ConfigError(f"{self.path} holds no trajectory; give one of a storage or of `nbrl distill`")

    def record(self, stage: Stage, seed: int) -> Found:
        recorded = [trajectory for file in self.files() for trajectory in _read(file)]
        named = [each.model_copy(update={"id": f"{number}-{each.id}"}) for number, each in enumerate(recorded)]
        return asyncio.run(retold(named, stage))

    def files(self) -> list[Path]:
        """Files of the folder itself: links in it are not followed."""
        if self.path.is_dir():
            found = (path for path in self.path.iterdir() if path.suffix in SUFFIXES and not path.is_symlink())
            if files := sorted(path for path in found if path.is_file()):
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
            table = read_parquet(path)
            lacks = [name for name in SCHEMA.names if name not in table.column_names]
            if lacks:
                raise ConfigError(
                    f"{path} is no table of trajectories: it lacks {lacks[0]}; give one of a storage or of `nbrl distill`"
                )
            return from_table(table.select(SCHEMA.names))
        return [read(path.read_bytes())]
    except ValidationError as error:
        why = fault_in_words(error)
        raise ConfigError(f"{path} is no table of trajectories: {why}; give one of a storage or of `nbrl distill`") from error
    except (RecordingError, pa.ArrowException, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path} cannot be read: {reason}; take it away, or bring it back from a copy") from error
