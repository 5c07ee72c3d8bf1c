"""Clouds on this machine: servers that speak their protocols, and a proxy that counts what is asked of them and does it badly."""

import http.client
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

from nbrl.infra.process.child import Child, free_port, port_in_use
from nbrl.infra.storage import Storage

START_S = 60.0
Fault = Literal["", "refused", "slow", "cut", "dropped"]
FAULTS: tuple[Fault, ...] = ("refused", "slow", "cut", "dropped")


class FolderCloud(Storage):
    """A storage in a folder that passes for a cloud: nobody gets the path of an object."""

    @property
    def is_local(self) -> bool:
        return False

    def local_path(self, key: str) -> None:
        return None


@contextmanager
def serving(command: Callable[[int], list[str]], folder: Path) -> Iterator[int]:
    """A server while it runs, by its port."""
    port = free_port()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": ""}
    server = Child.start(command(port), env=environment, log=folder / "log", name="server")
    try:
        deadline = time.monotonic() + START_S
        while not port_in_use(port):
            assert time.monotonic() < deadline, f"the server does not listen: {(folder / 'log').read_text()[-500:]}"
            time.sleep(0.05)
        yield port
    finally:
        server.stop()


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """Variables with which AWS tools reach a local S3 server that checks credentials; its only bucket is called bucket."""
    (folder / "bucket").mkdir()
    rclone = str(Path(sys.executable).with_name("rclone"))
    with serving(
        lambda port: [rclone, "serve", "s3", "--auth-key", "key,secret", "--addr", f"127.0.0.1:{port}", str(folder)], folder
    ) as port:
        yield {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class Faults:
    """A fault for each request by chance: of each kind `share` of all, in an order that the seed decides."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._random, self._lock = share, random.Random(seed), threading.Lock()
        self.counts: dict[Fault, int] = dict.fromkeys(FAULTS, 0)

    def next(self) -> Fault:
        with self._lock:
            kind = int(self._random.random() / self._share)
            if kind >= len(FAULTS):
                return ""
            self.counts[FAULTS[kind]] += 1
            return FAULTS[kind]


class Proxy:
    """Hands requests on to a server and keeps what they asked for as `METHOD path`; while it is `down` it hangs up.

    `fault` says for each request what becomes of it: it is `refused` with status 503; it is `slow`, by `slow_s`; it is carried
    out, and its answer is `cut` in half, or lost if it has no body; or it is `dropped` before it is carried out.
    """

    def __init__(self, server: str, fault: Callable[[], Fault] = lambda: "", slow_s: float = 0.1) -> None:
        self.asked: list[str] = []
        self.down = False
        proxy, target = self, server.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    self._hand_on()
                except ConnectionError:  # of a client that was killed, or of the server
                    self.close_connection = True

            def _hand_on(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if proxy.down or not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                if len(body) < length:
                    self.close_connection = True
                    return
                proxy.asked.append(f"{self.command} {self.path}")
                trouble = fault()
                if trouble == "refused":
                    self.send_response_only(503)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if trouble == "dropped":
                    self.close_connection = True
                    return
                if trouble == "slow":
                    time.sleep(slow_s)
                connection = http.client.HTTPConnection(target, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                data = answer.read()
                if trouble == "cut":
                    self.close_connection = True
                    if not data:
                        connection.close()
                        return
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection") and (
                        name.lower() != "content-length" or self.command == "HEAD"
                    ):
                        self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                sent = data[: len(data) // 2] if trouble == "cut" else data
                self.wfile.write(sent if self.command != "HEAD" else b"")
                connection.close()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def methods(self) -> list[str]:
        """The methods of all requests so far, which are then forgotten."""
        asked, self.asked = self.asked, []
        return [request.partition(" ")[0] for request in asked]
