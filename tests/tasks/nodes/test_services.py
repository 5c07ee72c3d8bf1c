"""What the services keep so that it is not fetched twice."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.services.reads import TABLES
from tests.tasks.nodes.doubles import services


def test_the_last_tables_are_read_once_and_by_what_they_hold(tmp_path: Path) -> None:
    made = services(tmp_path)
    kept = [Artifact(path=f"t{n}", digest=made.storage.write_table(f"t{n}", pa.table({"a": [n]}))) for n in range(TABLES + 1)]
    for artifact in kept:
        made.read(artifact)
    made.storage.delete_keys([artifact.path for artifact in kept])
    assert [made.read(artifact)["a"].to_pylist() for artifact in kept[1:]] == [[n] for n in range(1, TABLES + 1)]
    with pytest.raises(MissingError):
        made.read(kept[0])
    made.storage.write_table("t1", pa.table({"a": [7]}))
    with pytest.raises(DamagedError):
        made.read(Artifact(path="t1", digest="another"))


def test_a_checkpoint_that_was_made_here_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = services(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights").write_text("w")
    copy = made.kept(tmp_path / "out", "runs/r/checkpoints/000001")
    assert (copy / "weights").read_text() == "w"
    monkeypatch.setattr(made.storage, "local_path", lambda path: None)
    assert asyncio.run(made.local_folder("runs/r/checkpoints/000001")) == copy
