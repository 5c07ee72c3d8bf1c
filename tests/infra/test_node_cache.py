"""Copies of a cloud's folders on a machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbrl.infra.errors import MissingError, StorageError
from nbrl.infra.node_cache import NodeCache, NodeSettings
from nbrl.infra.storage import Storage, StorageSettings
from tests.clouds import FolderCloud
from tests.uploads import upload

HOLD = """
import json, sys
from nbrl.infra.node_cache import NodeCache, NodeSettings
from nbrl.infra.storage import StorageSettings
from tests.clouds import FolderCloud
root, cache, key = json.loads(sys.argv[1])
lease = NodeCache(NodeSettings(cache=cache)).lease(FolderCloud(StorageSettings(root=root)), key)
print(lease.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def cloud(tmp_path: Path) -> FolderCloud:
    return FolderCloud(StorageSettings(root=str(tmp_path / "cloud")))


def stored(cloud: Storage, folder: Path, key: str, size: int = 100) -> None:
    for name in ("hf/weights", "state/shard"):
        (folder / key / name).parent.mkdir(parents=True)
        (folder / key / name).write_bytes(key.encode() * size)
    upload(cloud, folder / key, key)


def cache(folder: Path, gb: float = 1.0) -> NodeCache:
    return NodeCache(NodeSettings(cache=str(folder / "cache"), cache_gb=gb))


def copies(folder: Path) -> set[str]:
    return {path.name.partition("-")[2] for path in (folder / "cache").iterdir() if path.is_dir()}


def test_a_folder_on_this_machine_is_its_own_copy(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path / "storage")))
    stored(storage, tmp_path, "a")
    assert cache(tmp_path).lease(storage, "a").path == tmp_path / "storage/a"
    assert not (tmp_path / "cache").exists()


def test_a_folder_is_fetched_once_whatever_its_key(tmp_path: Path, cloud: FolderCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cloud, tmp_path, "a")
    upload(cloud, tmp_path / "a", "elsewhere/a")
    with cache(tmp_path).lease(cloud, "a") as lease:
        assert (lease.path / "state/shard").read_bytes() == b"a" * 100
    monkeypatch.setattr(cloud, "download_folder", lambda *_: pytest.fail("it was fetched again"))
    with cache(tmp_path).lease(cloud, "elsewhere/a") as lease:
        assert (lease.path / "hf/weights").read_bytes() == b"a" * 100


def test_a_part_is_fetched_alone(tmp_path: Path, cloud: FolderCloud) -> None:
    stored(cloud, tmp_path, "a")
    with cache(tmp_path).lease(cloud, "a", "hf") as lease:
        assert sorted(path.name for path in lease.path.iterdir()) == ["hf", "manifest.json"]


@pytest.mark.parametrize("damage", ["hf/weights", "manifest.json"])
def test_a_damaged_copy_is_fetched_again(tmp_path: Path, cloud: FolderCloud, damage: str) -> None:
    stored(cloud, tmp_path, "a")
    with cache(tmp_path).lease(cloud, "a") as lease:
        (lease.path / damage).write_bytes(b"x")
    with cache(tmp_path).lease(cloud, "a") as lease:
        assert (lease.path / "hf/weights").read_bytes() == b"a" * 100


def test_what_is_not_there_is_told(tmp_path: Path, cloud: FolderCloud) -> None:
    with pytest.raises(MissingError, match=r"none/manifest\.json does not exist"):
        cache(tmp_path).lease(cloud, "none")
    (tmp_path / "cache").write_text("a file")
    stored(cloud, tmp_path, "a")
    with pytest.raises(StorageError, match=r"cannot keep a copy of .*/a below .*; set nodes\.cache to a folder with room"):
        cache(tmp_path).lease(cloud, "a")


def test_the_longest_unused_copies_make_room(tmp_path: Path, cloud: FolderCloud) -> None:
    for key in "abc":
        stored(cloud, tmp_path, key, size=1000)
    small = cache(tmp_path, gb=6e-6)
    for key in "ab":
        small.lease(cloud, key).release()
        time.sleep(0.01)  # the order of use is that of the files' times
    small.lease(cloud, "a").release()
    small.lease(cloud, "c").release()
    held = {path.read_bytes()[:1] for path in (tmp_path / "cache").glob("*/hf/weights")}
    assert held == {b"a", b"c"}
    assert len(list((tmp_path / "cache").glob("*.lock"))) == 2


@pytest.mark.process
def test_what_another_process_uses_stays_until_it_ends(tmp_path: Path, cloud: FolderCloud) -> None:
    for key in "ab":
        stored(cloud, tmp_path, key, size=1000)
    small = cache(tmp_path, gb=1e-6)
    given = json.dumps([cloud.settings.root, str(tmp_path / "cache"), "a"])
    root = str(Path(__file__).parents[2])
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert other.stdin
    assert other.stdout
    path = Path(other.stdout.readline().strip())
    small.lease(cloud, "b").release()
    assert (path / "hf/weights").exists()
    other.kill()
    other.wait()
    stored(cloud, tmp_path, "c")
    small.lease(cloud, "c").release()
    assert not path.exists()
    other.stdin.close()
    other.stdout.close()


def test_a_copy_in_use_is_used_by_others_too(tmp_path: Path, cloud: FolderCloud) -> None:
    stored(cloud, tmp_path, "a")
    first = cache(tmp_path).lease(cloud, "a")
    second, third = cache(tmp_path).lease(cloud, "a"), cache(tmp_path).lease(cloud, "a")
    assert first.path == second.path == third.path
    first.release()
    tiny = cache(tmp_path, gb=1e-9)
    stored(cloud, tmp_path, "b")
    tiny.lease(cloud, "b").release()
    assert second.path.exists()
    for lease in (second, third):
        lease.release()
    tiny.lease(cloud, "b").release()
    stored(cloud, tmp_path, "c")
    tiny.lease(cloud, "c").release()
    assert not second.path.exists()


def test_what_is_adopted_makes_room_and_what_is_being_fetched_is_left_alone(tmp_path: Path, cloud: FolderCloud) -> None:
    stored(cloud, tmp_path, "a", size=1000)
    small = cache(tmp_path, gb=1e-6)
    old = small.lease(cloud, "a").path
    other = tmp_path / "cache" / ".digest-hf-fetching"
    other.mkdir()
    with small.scratch("rank-0") as folder:
        (folder / "hf").mkdir()
        (folder / "hf/weights").write_bytes(b"w" * 2000)
        upload(cloud, folder, "b")
        small.adopt(folder, "hf")
    assert not old.exists()
    assert other.exists()
    assert len(list((tmp_path / "cache").glob("*-hf"))) == 1


def test_what_was_made_here_is_not_fetched(tmp_path: Path, cloud: FolderCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cache(tmp_path)
    with made.scratch("rank-0") as folder:
        for name in ("hf/weights", "state/shard"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_bytes(b"made")
        upload(cloud, folder, "a")
        made.adopt(folder, "hf")
    assert not folder.exists()
    monkeypatch.setattr(cloud, "download_folder", lambda *_: pytest.fail("it was fetched"))
    with cache(tmp_path).lease(cloud, "a", "hf") as lease:
        assert (lease.path / "hf/weights").read_bytes() == b"made"
