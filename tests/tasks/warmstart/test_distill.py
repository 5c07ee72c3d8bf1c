"""Where successes are written, and where not."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.warmstart import recipe

ONE = Trajectory(id="t", group="g", sample=0, question="?", ability="a", status=Status.ANSWERED, answer="1", nodes=[], steps=[])


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(recipe, "successes", lambda storage, run, best: [ONE] * best)
    return Storage(StorageSettings(root=str(tmp_path / "storage")))


def test_the_file_is_whole_and_nothing_is_left_beside_it(storage: Storage, tmp_path: Path) -> None:
    assert recipe.write(storage, "run", 2, tmp_path / "new/right.parquet") == 2
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["right.parquet"]
    assert pq.read_table(tmp_path / "new/right.parquet")["id"].to_pylist() == ["t", "t"]


def test_nothing_is_overwritten_and_no_link_followed(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "link.parquet").symlink_to(tmp_path / "elsewhere.parquet")
    (tmp_path / "there.parquet").write_text("mine")
    for name in ("link.parquet", "there.parquet"):
        with pytest.raises(ConfigError, match="exists; name a file that does not"):
            recipe.write(storage, "run", 1, tmp_path / name)
    assert (tmp_path / "there.parquet").read_text() == "mine"
    assert not (tmp_path / "elsewhere.parquet").exists()


def test_a_place_that_cannot_be_written_is_named(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="could not be written"):
        recipe.write(storage, "run", 1, tmp_path / "file/right.parquet")
    with pytest.raises(ConfigError, match=r"must end in \.parquet"):
        recipe.write(storage, "run", 1, tmp_path / "right.csv")
