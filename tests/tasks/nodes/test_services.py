"""What the services keep so that it is not fetched twice."""

from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.services.services import TABLES
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
