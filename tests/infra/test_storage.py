"""The same storage on a local folder and on a real S3 server (rclone)."""

import hashlib
import importlib.util
import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.infra.arrow_files import MOST_ROWS
from nbrl.infra.blobs import TEMPORARY
from nbrl.infra.errors import DamagedError, StorageError
from nbrl.infra.storage import Storage, StorageSettings, sha256
from tests.clouds import s3_server
from tests.uploads import upload


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables with which AWS tools reach a local S3 server that checks credentials."""
    with s3_server(tmp_path_factory.mktemp("s3")) as variables:
        yield variables


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.process)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage(StorageSettings(root=str(tmp_path / "storage")))
    os.environ.update(request.getfixturevalue("s3"))
    return Storage(StorageSettings(root=f"s3://bucket/{tmp_path.name}"))


def test_bytes(storage: Storage) -> None:
    assert not storage.exists("runs/a/x")
    assert storage.write_bytes("runs/a/x", b"one") == sha256(b"one") == hashlib.sha256(b"one").hexdigest()
    assert storage.read_bytes("runs/a/x") == b"one"
    storage.write_bytes("runs/a/x", b"two")
    assert storage.read_bytes("runs/a/x") == b"two"
    assert storage.exists("runs/a/x")
    assert not storage.exists("runs/a")
    assert storage.uri("runs/a/x").endswith("/runs/a/x")


@pytest.mark.attack(
    tried="Links, pipes and devices in a storage, to be read, written through or deleted",
    wall="no link below the root is followed; what is no regular file is not read",
    effect="one sentence; what they name is as it was",
)
def test_no_link_in_a_folder_is_followed_and_no_pipe_is_read(tmp_path: Path) -> None:
    storage, outside = Storage(StorageSettings(root=str(tmp_path / "storage"))), tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_bytes(b"mine")
    storage.write_bytes("runs/a/x", b"one")
    run = tmp_path / "storage/runs/a"
    (run / "folder").symlink_to(outside)
    (run / "file").symlink_to(outside / "keep")
    os.mkfifo(run / "pipe")
    for fails in (
        lambda: storage.read_bytes("runs/a/file"),
        lambda: storage.read_bytes("runs/a/folder/keep"),
        lambda: storage.read_bytes("runs/a/pipe"),
        lambda: storage.write_bytes("runs/a/folder/new", b"x"),
        lambda: storage.write_bytes("runs/a/file", b"x"),
        lambda: storage.create_bytes("runs/a/folder/new", b"x"),
        lambda: storage.delete_keys(["runs/a/folder/keep"]),
        lambda: storage.delete("runs/a/folder/keep"),
        lambda: storage.local_path("runs/a/folder"),
        lambda: storage.local_path("runs/a/folder/keep"),
        lambda: storage.exists("runs/a/file"),
        lambda: storage.exists("runs/a/folder/keep"),
        lambda: storage.list("runs/a/folder"),
        lambda: storage.list("runs/a/folder/below"),
        lambda: storage.sizes("runs/a/folder"),
        lambda: storage.delete_unfinished("runs/a/folder"),
    ):
        with pytest.raises(DamagedError, match=r"is a link, and none is followed there|is no regular file"):
            fails()
    assert set(storage.sizes("runs") or ()) == {"runs/a/x", "runs/a/file", "runs/a/pipe"}
    storage.delete("runs/a/folder")
    storage.delete_keys(["runs/a/file", "runs/a/pipe"])
    assert storage.list("runs") == ["runs/a/x"]
    assert [path.name for path in outside.iterdir()] == ["keep"]


@pytest.mark.attack(
    tried="A file of a run that says it has gigabytes, or a table of millions of rows in a few kilobytes",
    wall="bounds of texts and of rows, looked at before anything is read",
    effect="one sentence",
)
def test_what_is_too_large_to_be_of_a_run_is_not_read(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    for name in ("run.json", "config.yaml"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(DamagedError, match=rf"{name} has more than 128 MB"):
            storage.read_bytes(name)
    half = pa.table({"id": pa.nulls(MOST_ROWS // 2 + 1, pa.int8())})
    with pq.ParquetWriter(tmp_path / "t.parquet", half.schema) as writer:
        writer.write_table(half)
        writer.write_table(half)
    with pytest.raises(DamagedError, match=f"has {MOST_ROWS + 2} rows"):
        storage.read_table("t.parquet")


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "storage").symlink_to(tmp_path / "disk")
    storage = Storage(StorageSettings(root=str(tmp_path / "storage")))
    storage.write_bytes("runs/a/x", b"one")
    assert (tmp_path / "disk/runs/a/x").read_bytes() == storage.read_bytes("runs/a/x") == b"one"


def test_an_object_is_created_once(storage: Storage) -> None:
    assert storage.create_bytes("runs/a/record", b"one")
    assert storage.read_bytes("runs/a/record") == b"one"
    assert storage.creates_once() == storage.is_local  # rclone's server ignores the condition
    assert storage.list("") == ["runs/a/record"]
    if storage.is_local:
        assert not storage.create_bytes("runs/a/record", b"two")
        assert storage.read_bytes("runs/a/record") == b"one"


def test_of_many_creators_one_succeeds(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    with ThreadPoolExecutor(16) as pool:
        for key in map(str, range(20)):
            made = list(pool.map(lambda n, key=key: storage.create_bytes(key, bytes([n])), range(16)))  # type: ignore[misc]
            assert sum(made) == 1
            assert storage.read_bytes(key) == bytes([made.index(True)])
    assert storage.list() == sorted(map(str, range(20)))


@pytest.mark.process
@pytest.mark.parametrize("variables", [{"AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}])
def test_what_cannot_be_found_out_is_never_absent(s3: dict[str, str], variables: dict[str, str]) -> None:
    os.environ.update(s3)
    Storage(StorageSettings(root="s3://bucket/there")).write_bytes("x", b".")
    os.environ.update(variables)
    storage = Storage(StorageSettings(root="s3://bucket/there"), patience_s=0)
    for ask in (lambda: storage.exists("x"), lambda: storage.exists("none"), storage.list, lambda: storage.delete("x")):
        with pytest.raises(StorageError, match=r"^cannot (look for|list|delete) s3://bucket/there"):
            ask()


def test_a_folder_that_cannot_be_entered_is_an_error_not_an_absence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = Storage(StorageSettings(root=str(tmp_path)))
    assert not storage.exists("file/below")
    with pytest.raises(StorageError, match="cannot look for"):
        storage.exists("x" * 300)


def test_missing_object_says_where(storage: Storage) -> None:
    with pytest.raises(StorageError, match="runs/none does not exist"):
        storage.read_bytes("runs/none")


def test_list_and_delete(storage: Storage) -> None:
    for key in ("a/2", "a/1", "a/deep/3", "ab/4"):
        storage.write_bytes(key, b".")
    assert storage.list("a") == ["a/1", "a/2", "a/deep/3"]
    assert storage.list() == ["a/1", "a/2", "a/deep/3", "ab/4"]
    assert storage.list("none") == []
    storage.delete("a")
    assert storage.list() == ["ab/4"]
    storage.delete("ab/4")
    storage.delete("ab/4")
    assert storage.list() == []


def test_known_keys_are_deleted_whether_they_exist_or_not(storage: Storage) -> None:
    for key in ("a/1", "a/2", "b"):
        storage.write_bytes(key, b".")
    storage.delete_keys(["a/1", "none", "b"])
    assert storage.list() == ["a/2"]
    storage.delete_keys([])


def test_list_sees_what_another_process_wrote(storage: Storage) -> None:
    assert storage.list("a") == []
    pickle.loads(pickle.dumps(storage)).write_bytes("a/1", b".")
    assert storage.list("a") == ["a/1"]


def test_table(storage: Storage) -> None:
    table = pa.table({"id": [1, 2], "tokens": [[1, 2], []], "text": ["a", None]})
    digest = storage.write_table("t.parquet", table)
    assert storage.read_table("t.parquet").equals(table)
    assert storage.write_table("again.parquet", table) == digest == sha256(storage.read_bytes("t.parquet"))


def test_folder(storage: Storage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "weights").write_bytes(b"w" * 3_000_000)
    (source / "deep" / "config.json").write_text("{}")
    digest = upload(storage, source, "checkpoints/1")
    assert upload(storage, source, "checkpoints/2") == digest
    assert "checkpoints/1/manifest.json" in storage.list("checkpoints/1")
    target = storage.download_folder("checkpoints/1", tmp_path / "target")
    assert (target / "weights").read_bytes() == b"w" * 3_000_000
    assert (target / "deep" / "config.json").read_text() == "{}"
    storage.download_folder("checkpoints/2", tmp_path / "target")  # replaces


def test_folder_without_manifest_does_not_exist(storage: Storage, tmp_path: Path) -> None:
    storage.write_bytes("checkpoints/1/weights", b"w")
    with pytest.raises(StorageError, match="manifest"):
        storage.download_folder("checkpoints/1", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_folder_that_was_changed_is_refused(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "weights").write_bytes(b"w")
    upload(storage, tmp_path / "source", "c")
    storage.write_bytes("c/weights", b"x")
    with pytest.raises(StorageError, match="not what its manifest says"):
        storage.download_folder("c", tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".target")] == []


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x"])
def test_keys_stay_below_the_root(storage: Storage, key: str) -> None:
    with pytest.raises(StorageError, match="not a key"):
        storage.write_bytes(key, b".")


def test_pickles_without_connections(storage: Storage) -> None:
    storage.write_bytes("x", b".")
    assert len(pickle.dumps(storage)) < 500
    assert pickle.loads(pickle.dumps(storage)).read_bytes("x") == b"."


def test_wrong_credentials(s3: dict[str, str]) -> None:
    os.environ.update(s3 | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    with pytest.raises(StorageError, match="cannot write s3://bucket/denied/x"):
        Storage(StorageSettings(root="s3://bucket/denied")).write_bytes("x", b".")


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ("http://host/x", "neither a folder nor an address with s3://, gs:// or az://"),
        ("s3://", "names no bucket; write it as s3://bucket/prefix"),
        ("gs:///", "names no bucket; write it as gs://bucket/prefix"),
    ],
)
def test_roots_that_are_none(root: str, words: str) -> None:
    with pytest.raises(StorageError, match=words):
        Storage(StorageSettings(root=root))


@pytest.mark.parametrize(("scheme", "package", "extra"), [("gs", "gcsfs", "gs"), ("az", "adlfs", "az"), ("abfs", "adlfs", "az")])
def test_a_cloud_whose_package_is_missing_says_what_to_install(
    scheme: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StorageError, match=rf"^storage.root {scheme}://b/x needs {package}: pip install 'nbrl\[{extra}\]'$"):
        Storage(StorageSettings(root=f"{scheme}://b/x"))


@pytest.mark.parametrize("cut", [0, 0.5], ids=["empty", "half"])
def test_a_file_that_is_cut_short_is_damaged(tmp_path: Path, cut: float) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "weights").write_bytes(b"w")
    storage.write_json("fields.json", {"a": 1})
    storage.write_table("table.parquet", pa.table({"a": [1]}))
    upload(storage, tmp_path / "source", "folder")
    reads: dict[str, Callable[[], object]] = {
        "fields.json": lambda: storage.read_json("fields.json"),
        "table.parquet": lambda: storage.read_table("table.parquet"),
        "folder/manifest.json": lambda: storage.download_folder("folder", tmp_path / "target"),
        "folder/weights": lambda: storage.download_folder("folder", tmp_path / "target"),
    }
    for key, read in reversed(reads.items()):
        whole = storage.read_bytes(key)
        storage.write_bytes(key, whole[: int(len(whole) * cut)])
        with pytest.raises(DamagedError, match=rf"{key} (is|is not)( damaged| no manifest| what its manifest says).*; bring"):
            read()


def test_local_write_is_all_or_nothing(tmp_path: Path) -> None:
    """Readers that race with a writer see one of its versions whole; what a killed writer left is invisible."""
    storage = Storage(StorageSettings(root=str(tmp_path)))
    versions = [bytes([n]) * 200_000 for n in range(2)]
    storage.write_bytes("x", versions[0])
    done = threading.Event()

    def write() -> None:
        for n in range(200):
            storage.write_bytes("x", versions[n % 2])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        assert storage.read_bytes("x") in versions
    thread.join()
    (tmp_path / f"{TEMPORARY}killed").write_bytes(b"half")
    (tmp_path / f"{TEMPORARY}deleted" / "folder").mkdir(parents=True)
    (tmp_path / f"{TEMPORARY}deleted" / "folder" / "file").write_bytes(b"left of a deletion that was cut off")
    assert storage.list() == ["x"]


def test_what_killed_processes_left_half_written_goes_after_an_hour(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    storage.write_bytes("runs/r/x", b"whole")
    for name in ("file", "recent", "folder/file"):
        (tmp_path / f"runs/r/{TEMPORARY}{name}").parent.mkdir(exist_ok=True)
        (tmp_path / f"runs/r/{TEMPORARY}{name}").write_bytes(b"half")
    for name in ("file", "folder"):
        os.utime(tmp_path / f"runs/r/{TEMPORARY}{name}", (0, time.time() - 3700))
    os.utime(tmp_path / "runs/r/x", (0, 0))
    storage.delete_unfinished("runs/r")
    assert sorted(path.name for path in (tmp_path / "runs/r").iterdir()) == [f"{TEMPORARY}recent", "x"]
    storage.delete_unfinished("runs/none")


def test_two_processes_may_delete_the_same_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    storage.write_bytes("a/b/c", b"x")
    rename = Path.rename

    def after_another(self: Path, target: Path) -> Path:
        shutil.rmtree(self)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", after_another)
    storage.delete("a/b")
    assert storage.list() == []


def test_local_path(tmp_path: Path) -> None:
    assert Storage(StorageSettings(root=str(tmp_path))).local_path("a/b") == tmp_path / "a/b"
    assert Storage(StorageSettings(root="s3://bucket/x")).local_path("a/b") is None


def test_write_where_it_is_forbidden() -> None:
    with pytest.raises(StorageError, match="cannot write /proc/nbrl/x"):
        Storage(StorageSettings(root="/proc/nbrl")).write_bytes("x", b".")
