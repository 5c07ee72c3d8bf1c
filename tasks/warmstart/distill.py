"""A run's own successes as a file of demonstrations."""

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
    if file.exists():
        raise ConfigError(f"{file} exists; name a file that does not, nothing is overwritten")
    found = successes(storage, run, best)
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(to_table(found), unfinished)
        unfinished.rename(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ConfigError(f"{file} could not be written: {error.strerror}") from error
    return len(found)
