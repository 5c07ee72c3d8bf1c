"""New homes begin with databases that set-up made."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from nbrl.infra.home import Home
from nbrl.infra.setup import databases
from nbrl.infra.tracking import Tracking, TrackingSettings

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


@pytest.mark.process  # MLflow asks which machine it is on
def test_an_environment_without_prepared_databases_leaves_it_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "other"))

    databases.begin("mlflow", tmp_path / "mlflow.db")

    assert not (tmp_path / "mlflow.db").exists()
    assert Tracking(TrackingSettings(), Home(tmp_path)).experiment_id


@pytest.mark.process  # MLflow asks which machine it is on
def test_mlflow_takes_the_copy_as_its_own(tmp_path: Path) -> None:
    before = databases.prepared("mlflow").read_bytes()

    tracking = Tracking(TrackingSettings(), Home(tmp_path))

    assert tracking.client.get_experiment(tracking.experiment_id).name == "nbrl"
    assert tables(tmp_path / "mlflow/mlflow.db").keys() == tables(databases.prepared("mlflow")).keys()
    assert databases.prepared("mlflow").read_bytes() == before
