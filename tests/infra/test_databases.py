"""New homes begin with databases that set-up made."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from nbrl.infra import prefect_server
from nbrl.infra.home import Home
from nbrl.infra.setup import databases
from nbrl.infra.tracking import Tracking, TrackingSettings

SETUP = Path(databases.__file__).parent
SERVERS: list[databases.Server] = ["prefect", "mlflow"]
VERSIONED = {"prefect": {"alembic_version"}, "mlflow": {"alembic_version", "workspaces"}}  # MLflow has one workspace by itself


def tables(file: Path) -> dict[str, int]:
    """Rows by table."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}


@pytest.mark.parametrize("server", SERVERS)
def test_set_up_made_a_database_with_all_tables_and_no_rows(server: databases.Server) -> None:
    rows = tables(databases.prepared(server))

    assert len(rows) > 20
    assert {name for name, count in rows.items() if count} == VERSIONED[server]


@pytest.mark.parametrize("server", SERVERS)
def test_a_new_home_begins_with_a_copy(tmp_path: Path, server: databases.Server) -> None:
    file = tmp_path / "new.db"

    databases.begin(server, file)

    assert file.read_bytes() == databases.prepared(server).read_bytes()
    assert list(tmp_path.iterdir()) == [file]


def test_a_database_that_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    file.write_bytes(b"of an earlier run")

    databases.begin("prefect", file)

    assert file.read_bytes() == b"of an earlier run"


@pytest.mark.more
@pytest.mark.process  # MLflow asks which machine it is on
def test_an_environment_without_prepared_databases_leaves_it_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "other"))

    databases.begin("mlflow", tmp_path / "mlflow.db")

    assert not (tmp_path / "mlflow.db").exists()
    assert Tracking(TrackingSettings(), Home(tmp_path)).experiment_id


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_the_log_of_a_database_that_is_gone_is_not_applied_to_a_copy(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"prefect.db{suffix}").write_bytes(b"of an earlier run")

    databases.begin("prefect", tmp_path / "prefect.db")

    assert not (tmp_path / "prefect.db").exists()


def test_a_folder_without_links_leaves_it_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    databases.begin("prefect", tmp_path / "prefect.db")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[databases.Server], None]:
    """Lets the prepared database of a server have one more table."""

    def mark(server: databases.Server) -> None:
        copy = tmp_path / "marked.db"
        copy.write_bytes(databases.prepared(server).read_bytes())
        with closing(sqlite3.connect(copy)) as database, database:
            database.execute("CREATE TABLE marked (x INTEGER)")
        monkeypatch.setattr(databases, "prepared", lambda server: copy)

    return mark


@pytest.mark.process  # MLflow asks which machine it is on
def test_mlflow_takes_the_copy_as_its_own(tmp_path: Path, marked: Callable[[databases.Server], None]) -> None:
    marked("mlflow")

    tracking = Tracking(TrackingSettings(), Home(tmp_path))

    assert tracking.client.get_experiment(tracking.experiment_id).name == "nbrl"
    assert "marked" in tables(tmp_path / "mlflow/mlflow.db")


@pytest.mark.more
@pytest.mark.process
def test_prefect_takes_the_copy_as_its_own(tmp_path: Path, marked: Callable[[databases.Server], None]) -> None:
    marked("prefect")

    prefect_server.ensure(Home(tmp_path)).stop()

    assert "marked" in tables(tmp_path / "prefect/prefect.db")


@pytest.mark.more
@pytest.mark.process
def test_set_up_leaves_databases_alone_that_the_users_environment_names(tmp_path: Path) -> None:
    theirs = f"sqlite+aiosqlite:///{tmp_path}/theirs.db"
    variables = os.environ | {"PREFECT_API_DATABASE_CONNECTION_URL": theirs, "PREFECT_SERVER_DATABASE_CONNECTION_URL": theirs}
    made = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import databases; databases._prefect(pathlib.Path(sys.argv[2]))"

    subprocess.run([sys.executable, "-c", made, SETUP, tmp_path], env=variables, check=True, capture_output=True)

    assert not (tmp_path / "theirs.db").exists()
    assert tables(tmp_path / "prefect.db").keys() == tables(databases.prepared("prefect")).keys()
