"""Databases with all tables and no rows, which new homes begin with: Prefect and MLflow take seconds to migrate an empty one.

`python infra/setup/databases.py`, a part of set-up, makes them in the environment's own folder, for the versions installed there.
While an image is built it runs before the rest of nbrl is copied, so it imports none of it.
"""

import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Literal

Server = Literal["prefect", "mlflow"]


def prepared(server: Server) -> Path:
    """Return where this environment keeps the database for its version of the server."""
    return Path(sys.prefix, "share", "nbrl", f"{server}-{version(server)}.db")


def begin(server: Server, file: Path) -> None:
    """Copy the prepared database to `file`, unless there is a file, or the log of a deleted one, which would be applied.

    Where none was prepared, or it can't be copied, the server makes a database of its own.
    """
    source = prepared(server)
    if not source.is_file() or any(file.with_name(file.name + suffix).exists() for suffix in ("", "-wal", "-shm", "-journal")):
        return
    with suppress(OSError), tempfile.TemporaryDirectory(dir=file.parent, prefix=".new-") as folder:
        copy = Path(folder, file.name)
        shutil.copyfile(source, copy)
        os.link(copy, file)  # whole or not at all, and never over a file that another process made meanwhile


def make() -> None:
    """Make both databases. Nothing in them belongs to one home: neither rows nor keys."""
    with tempfile.TemporaryDirectory() as folder:
        _keep(_prefect(Path(folder)), prepared("prefect"))
        _keep(_mlflow(Path(folder)), prepared("mlflow"))


def _prefect(folder: Path) -> Path:
    file = folder / "prefect.db"
    os.chdir(folder)  # where no prefect.toml or .env names another database
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    os.environ.update({"PREFECT_HOME": str(folder), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"})
    os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{file}"
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    return file


def _mlflow(folder: Path) -> Path:
    os.environ.update({"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"})
    import mlflow

    file = folder / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{file}").search_experiments()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DELETE FROM experiments")  # the default one names a folder; MLflow makes it again
    return file


def _keep(file: Path, place: Path) -> None:
    """Put what `file` and its write-ahead log hold into one file at `place`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True)) as source, closing(sqlite3.connect(unfinished)) as target:
        source.backup(target)
    unfinished.replace(place)


if __name__ == "__main__":
    make()
