"""A published run on the web, and servers that lie."""

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from nbrl.infra.errors import DamagedError, InfraError
from nbrl.tasks.bundle import download as fetching
from nbrl.tasks.bundle.contents import CONTENTS, FileList, ListedFile, check_files, root_of
from nbrl.tasks.bundle.download import download
from nbrl.tasks.errors import ConfigError
from tests.tasks.bundle.test_contents import made


class Web(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Redirecting(Web):
    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "http://169.254.169.254/")
        self.end_headers()


class Endless(Web):
    def do_GET(self) -> None:
        if "bundle.json" in self.path:
            return super().do_GET()
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x" * 65536)
        except OSError:
            return None


class Dripping(Web):
    """Sends a byte of the list now and then."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" ")
                time.sleep(0.02)
        except OSError:
            return None


class Hesitating(Web):
    """Sends the list at once, and everything else late."""

    def do_GET(self) -> None:
        if "bundle.json" not in self.path:
            time.sleep(0.1)
        super().do_GET()


class LateHeaders(Web):
    """Sends a line of the headers now and then."""

    def do_GET(self) -> None:
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                self.wfile.write(b"X-A: b\r\n")
                time.sleep(0.02)
        except OSError:
            return None


class Compressed(Web):
    def end_headers(self) -> None:
        self.send_header("Content-Encoding", "gzip")
        super().end_headers()


@contextmanager
def web(folder: Path, kind: type[Web] = Web) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_published_run_is_fetched_whole(tmp_path: Path) -> None:
    made(tmp_path / "p")
    with web(tmp_path / "p") as address:
        contents = download(address, tmp_path / "copy", 1.0)
    check_files(tmp_path / "copy", contents)


@pytest.mark.attack(
    tried="A server of a published run that sends its reader elsewhere, or bytes without end, or packed ones",
    wall="no redirect is followed; of each file so many bytes are read as the list says; nothing is unpacked",
    effect="one sentence",
)
@pytest.mark.parametrize(
    ("kind", "fault", "words"),
    [
        (Redirecting, ConfigError, "answers 302"),
        (Endless, DamagedError, "is not the file that the list names"),
        (Compressed, ConfigError, "comes compressed"),
    ],
)
def test_a_server_that_answers_otherwise_is_refused(tmp_path: Path, kind: type[Web], fault: type[Exception], words: str) -> None:
    made(tmp_path / "p")
    with web(tmp_path / "p", kind) as address, pytest.raises(fault, match=words):
        download(address, tmp_path / "copy", 1.0)


@pytest.mark.parametrize("kind", [Dripping, LateHeaders])
def test_a_server_that_sends_its_list_for_ever_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Web]
) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.2)
    with web(tmp_path, kind) as address, pytest.raises(InfraError, match="takes too long"):
        download(address, tmp_path / "copy", 1.0)


def test_a_server_that_takes_long_for_every_empty_file_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(fetching, "FEWEST", 10_000)
    files = {f"{number}.json": ListedFile(size=0, sha256=sha256(b"").hexdigest()) for number in range(200)}
    for name in files:
        (tmp_path / name).touch()
    contents = FileList(run="r", version="1", commit="", packages={}, updates=1, files=files, root=root_of(files))
    (tmp_path / CONTENTS).write_text(contents.model_dump_json())
    with web(tmp_path, Hesitating) as address, pytest.raises(InfraError, match="takes too long"):
        download(address, tmp_path / "copy", 1.0)


@pytest.mark.parametrize(
    "address", ["http://[::1", "http://a/\x1b[31m", "http://xn--/", "http://..../", "http://a:99999/", "http://"]
)
def test_what_is_no_address_is_one_sentence(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        download(address, tmp_path / "copy", 1.0)


def test_more_than_is_allowed_is_not_fetched(tmp_path: Path) -> None:
    made(tmp_path / "p")
    with web(tmp_path / "p") as address, pytest.raises(ConfigError, match="--most-gb allows 1e-09"):
        download(address, tmp_path / "copy", 1e-9)


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with web(tmp_path) as address:
        pass
    with pytest.raises(InfraError, match=r"bundle.json cannot be fetched"):
        download(address, tmp_path / "copy", 1.0)
