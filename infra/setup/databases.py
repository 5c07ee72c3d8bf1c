"""Databases with all tables and no rows, which new homes begin with: Prefect and MLflow take seconds to migrate an empty one.

`python infra/setup/databases.py`, a part of set-up, makes them in the environment's own folder, for the versions that it holds.
It runs before there is any other code of nbrl in an image, so it imports none.
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
    """Where this environment keeps the database for its version of the server."""
    return Path(sys.prefix, "share", "nbrl", f"{server}-{version(server)}.db")


def begin(server: Server, file: Path) -> None:
    """Copy the prepared database to `file`, unless there is a file.

    Where none was prepared, or it can't be copied, the server makes a database of its own.
    """
    source = prepared(server)
    if file.exists() or not source.is_file():
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
    os.environ.update({"PREFECT_HOME": str(folder), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"})
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())
    return folder / "prefect.db"


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
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(unfinished)) as target:
        source.backup(target)
    unfinished.replace(place)


if __name__ == "__main__":
    make()
