"""Google Cloud Storage and Azure Blob Storage by their own libraries, against the emulators that there are of them."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.infra.errors import StorageError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.preflight import check_writable
from tests.clouds import Proxy, serving
from tests.uploads import upload

pytestmark = [pytest.mark.long, pytest.mark.process]

AZURITE = "azurite@3.37.0"
# Azurite's account, which its documentation gives.
ACCOUNT, KEY = "devstoreaccount1", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("azurite")
    if shutil.which("npm") is None:
        pytest.fail("azurite, the emulator of Azure, cannot be installed: install Node.js with npm", pytrace=False)
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), AZURITE]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"azurite, the emulator of Azure, cannot be installed by npm: {done.stderr[-300:]}", pytrace=False)
    program = [str(folder / "node_modules/.bin/azurite-blob"), "--location", str(folder / "data")]
    flags = ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with serving(lambda port: [*program, *flags, "--blobPort", str(port)], folder) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = [str(Path(sys.executable).with_name("gcp-storage-emulator")), "start", "--in-memory", "--default-bucket=bucket"]
    with serving(lambda port: [*program, "--port", str(port)], tmp_path_factory.mktemp("google")) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["gs", "az"])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with Proxy(request.getfixturevalue({"gs": "google", "az": "azurite"}[request.param])) as proxy:
        os.environ["STORAGE_EMULATOR_HOST"] = proxy.url
        address = f"BlobEndpoint={proxy.url}/{ACCOUNT};"
        os.environ["AZURE_STORAGE_CONNECTION_STRING"] = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{address}"
        )
        if request.param == "az":
            import adlfs

            container = adlfs.AzureBlobFileSystem(skip_instance_cache=True)
            if not container.exists("bucket"):
                container.mkdir("bucket")
        yield proxy


@pytest.fixture
def settings(proxy: Proxy, request: pytest.FixtureRequest, tmp_path: Path) -> StorageSettings:
    scheme = request.node.callspec.params["proxy"]
    proxy.methods()
    return StorageSettings(root=f"{scheme}://bucket/{tmp_path.name}")


def test_objects_and_what_they_cost(proxy: Proxy, settings: StorageSettings) -> None:
    storage = Storage(settings)
    storage.write_bytes("a/b", b"one")
    assert storage.read_bytes("a/b") == b"one"
    assert storage.exists("a/b")
    assert not storage.exists("a")
    assert not storage.exists("a/none")
    assert storage.list("a") == storage.list() == ["a/b"]
    assert storage.list("none") == []
    assert len(proxy.methods()) == 8
    storage.write_bytes("a/empty", b"")
    assert storage.read_bytes("a/empty") == b""
    with pytest.raises(StorageError, match="a/none does not exist"):
        storage.read_bytes("a/none")


def test_creation_is_asked_for_on_condition(proxy: Proxy, settings: StorageSettings) -> None:
    """Azure's emulator heeds the condition, Google's does not: of it only the request is seen."""
    storage = Storage(settings)
    assert storage.create_bytes("record", b"one")
    if settings.root.startswith("az://"):
        assert not storage.create_bytes("record", b"two")
        assert storage.create_bytes("record", b"one")  # the answer to the first one may have been lost
        assert storage.read_bytes("record") == b"one"
        assert check_writable(settings) == []
    else:
        assert "ifGenerationMatch=0" in proxy.asked[-1]
        assert "ignores conditional writes" in check_writable(settings)[0]
    assert storage.list() == ["record"]


def test_deletion(settings: StorageSettings) -> None:
    storage = Storage(settings)
    for key in (*(f"a/{n}" for n in range(120)), "ab"):
        storage.write_bytes(key, b".")
    storage.delete_keys(["a/0", "none", "a/1"])
    assert len(storage.list("a")) == 118
    storage.delete("a")
    storage.delete("a")
    assert storage.list() == ["ab"]


def test_tables_and_folders(settings: StorageSettings, tmp_path: Path) -> None:
    storage, table = Storage(settings), pa.table({"a": [1, 2]})
    assert storage.read_table("t.parquet", storage.write_table("t.parquet", table)).equals(table)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "weights").write_bytes(os.urandom(9_000_000))
    upload(storage, tmp_path / "source", "checkpoint")
    copy = storage.download_folder("checkpoint", tmp_path / "copy")
    assert (copy / "weights").read_bytes() == (tmp_path / "source" / "weights").read_bytes()


def test_an_outage_of_a_minute_is_a_pause(proxy: Proxy, settings: StorageSettings) -> None:
    """For all operations at once, so that one minute is waited for."""
    storage = Storage(settings)
    for key in ("x", "old"):
        storage.write_bytes(key, b".")
    proxy.down = True
    threading.Timer(60, lambda: setattr(proxy, "down", False)).start()
    operations: list[Callable[[], object]] = [
        lambda: storage.read_bytes("x"),
        lambda: storage.write_bytes("y", b"."),
        lambda: storage.create_bytes("z", b"."),
        lambda: storage.exists("x"),
        lambda: storage.list(),
        lambda: storage.delete_keys(["old"]),
    ]
    with ThreadPoolExecutor(len(operations)) as threads:
        for work in [threads.submit(operation) for operation in operations]:
            work.result()
    assert storage.list() == ["x", "y", "z"]


def test_what_cannot_be_found_out_is_never_absent(proxy: Proxy, settings: StorageSettings) -> None:
    proxy.down = True
    storage = Storage(settings, patience_s=0)
    for ask in (lambda: storage.exists("x"), lambda: storage.list(), lambda: storage.delete_keys(["x"])):
        with pytest.raises(StorageError, match=rf"^cannot (look for|list|delete) {settings.root}"):
            ask()
