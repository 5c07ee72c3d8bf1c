"""A hub on this machine: a server that speaks as much of its protocol as a data set's files need."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def hub_server(folder: Path) -> Iterator[str]:
    """Its address while it runs; the files of the data set `me/sums` are those of the folder."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            before, _, path = self.path.partition("?")[0].partition("/main")
            place = folder / path.strip("/")
            match before:
                case "/api/datasets/me/sums" | "/api/datasets/me/sums/revision":
                    self._answer(json.dumps({"id": "me/sums", "sha": "0" * 40}).encode())
                case "/api/datasets/me/sums/tree" if place.is_dir():
                    self._answer(json.dumps([_described(each, folder) for each in sorted(place.iterdir())]).encode())
                case "/datasets/me/sums/resolve" if place.is_file():
                    self._answer(place.read_bytes())
                case _:
                    self._answer(b"{}", 404, {"X-Error-Code": "EntryNotFound" if "me/sums" in before else "RepoNotFound"})

        def _answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _described(path: Path, folder: Path) -> dict[str, object]:
    name = str(path.relative_to(folder))
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "path": name, "size": 0}
    content = path.read_bytes()
    return {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "path": name, "size": len(content)}
