"""A real HTTP server on this machine that says what a test wants, and keeps what it was asked."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Said:
    """One answer: `body` is JSON unless it is bytes."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass(frozen=True)
class Asked:
    """One request; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Server:
    """Answers `answers` in order, the last one again and again; or whatever `route` gives for a path."""

    url: str
    answers: list[Said]
    route: Callable[[str], Said] | None = None
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def serving(*answers: Said, route: Callable[[str], Said] | None = None, host: str = "127.0.0.1") -> Iterator[Server]:
    """Run a server until the block is done."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(size)
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.asked.append(Asked(self.path, headers, json.loads(data) if data else None))
            said = server.route(self.path) if server.route else server.answers[min(len(server.asked), len(server.answers)) - 1]
            time.sleep(said.delay_s)
            body = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
            self.send_response(said.status)
            for name, value in {"Content-Length": str(len(body)), **said.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    httpd = ThreadingHTTPServer((host, 0), Handler)
    httpd.handle_error = lambda *_: None  # type: ignore[method-assign]
    server = Server(f"http://{host}:{httpd.server_port}", list(answers), route)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
