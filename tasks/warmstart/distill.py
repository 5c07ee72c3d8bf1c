"""A run's own successes as a file of demonstrations."""

import os
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from nbrl.agent.trajectory import to_table
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.warmstart.sources.successes import successes


def write(storage: Storage, run: str, best: int, file: Path) -> int:
    """Write up to `best` right trajectories of each training question of a run, and return their number. Raises ConfigError."""
    if file.suffix != ".parquet":
        raise ConfigError(f"{file} must end in .parquet")
    if os.path.lexists(file):
        raise ConfigError(f"{file} exists; name a file that does not, nothing is overwritten")
    found = successes(storage, run, best)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as beside:
            made = Path(beside) / file.name
            pq.write_table(to_table(found), made)
            os.link(made, file)  # fails where there is something, a link too
    except OSError as error:
        raise ConfigError(f"{file} could not be written: {error.strerror}; name another") from error
    return len(found)
