"""What an operation costs in requests, and what an outage does, on a real S3 server behind a proxy."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nbrl.infra.errors import StorageError
from nbrl.infra.storage import Storage, StorageSettings
from tests.clouds import Proxy, s3_server
from tests.uploads import upload

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as variables:
        yield variables


@pytest.fixture
def proxy(server: dict[str, str]) -> Iterator[Proxy]:
    with Proxy(server["AWS_ENDPOINT_URL"]) as proxy:
        os.environ.update(server | {"AWS_ENDPOINT_URL": proxy.url})
        yield proxy


@pytest.fixture
def settings(tmp_path: Path) -> StorageSettings:
    return StorageSettings(root=f"s3://bucket/{tmp_path.name}")


OPERATIONS: dict[str, tuple[Callable[[Storage], object], list[str]]] = {
    "read": (lambda storage: storage.read_bytes("a/1"), ["GET"]),
    "write": (lambda storage: storage.write_bytes("a/3", b"3"), ["PUT"]),
    "create": (lambda storage: storage.create_bytes("a/4", b"4"), ["PUT"]),
    "exists": (lambda storage: storage.exists("a/1"), ["HEAD"]),
    "does not exist": (lambda storage: storage.exists("a"), ["HEAD"]),
    "list": (lambda storage: storage.list("a"), ["GET"]),
    "list none": (lambda storage: storage.list("none"), ["GET"]),
    "delete keys": (lambda storage: storage.delete_keys(["a/1", "a/2", "none"]), ["POST"]),
    "delete 1001 keys": (lambda storage: storage.delete_keys([str(n) for n in range(1001)]), ["POST", "POST"]),
    "delete a folder": (lambda storage: storage.delete("a"), ["GET", "POST"]),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.more if "1001" in name else ()) for name in OPERATIONS])
def test_requests_of_an_operation(proxy: Proxy, settings: StorageSettings, name: str) -> None:
    storage = Storage(settings)
    for key in ("a/1", "a/2"):
        storage.write_bytes(key, b".")
    proxy.methods()
    operation, methods = OPERATIONS[name]
    operation(storage)
    assert proxy.methods() == methods


@pytest.mark.more
def test_a_long_list_is_read_to_its_end(tmp_path: Path) -> None:
    keys = [f"a/{n:04d}" for n in range(1003)]
    with s3_server(tmp_path) as variables:
        os.environ.update(variables)
        (tmp_path / "bucket" / "a").mkdir()
        for key in keys:
            (tmp_path / "bucket" / key).write_bytes(b"")
        storage = Storage(StorageSettings(root="s3://bucket"))
        assert storage.list("a") == storage.list("") == keys
        storage.delete("a")
        assert storage.list("") == []


def test_a_folder_of_the_server_that_a_cut_upload_left_is_no_obstacle(tmp_path: Path) -> None:
    with s3_server(tmp_path) as variables:
        os.environ.update(variables)
        storage = Storage(StorageSettings(root="s3://bucket"))
        storage.write_bytes("a/1", b".")
        (tmp_path / "bucket/a/left").mkdir()
        storage.delete("a")
        storage.delete("a")
        assert storage.list("a") == []
        storage.write_bytes("a/1", b"again")
        storage.delete("a/1")
        assert not storage.exists("a/1")


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.long)])  # 6: longer than botocore's own tries
def test_an_outage_is_a_pause_for_all_that_is_asked_meanwhile(proxy: Proxy, settings: StorageSettings, seconds: int) -> None:
    names = [name for name in OPERATIONS if name != "delete 1001 keys"]
    storages = [Storage(StorageSettings(root=f"{settings.root}/{number}")) for number in range(len(names))]
    for storage in storages:
        for key in ("a/1", "a/2"):
            storage.write_bytes(key, b".")
    proxy.down = True
    back = threading.Timer(seconds, lambda: setattr(proxy, "down", False))
    back.start()
    with ThreadPoolExecutor(len(names)) as threads:
        asked = [threads.submit(OPERATIONS[name][0], storage) for name, storage in zip(names, storages, strict=True)]
    for name, answer in zip(names, asked, strict=True):
        assert answer.exception() is None, name
    assert not proxy.down
    back.join()


@pytest.mark.more
def test_many_files_at_once_outlast_an_outage(proxy: Proxy, settings: StorageSettings, tmp_path: Path) -> None:
    """Not so with botocore's own tries alone, whose budget all requests of a client share."""
    storage, source = Storage(settings), tmp_path / "source"
    source.mkdir()
    for number in range(40):
        (source / str(number)).write_bytes(bytes([number]))
    proxy.down = True
    threading.Timer(20, lambda: setattr(proxy, "down", False)).start()
    upload(storage, source, "folder")
    storage.download_folder("folder", tmp_path / "target")
    assert [(tmp_path / "target" / str(number)).read_bytes() for number in range(40)] == [bytes([n]) for n in range(40)]


@pytest.mark.more
def test_an_outage_that_lasts_is_one_error(proxy: Proxy, settings: StorageSettings) -> None:
    proxy.down = True
    with pytest.raises(StorageError, match=r"^cannot read s3://bucket/.*/x: Connection was closed"):
        Storage(settings, patience_s=1).read_bytes("x")
