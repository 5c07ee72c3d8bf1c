"""A server of chat completions that replies what a test says, by a queue or by what it is asked; the requests are kept."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

S = TypeVar("S", bound="Server")


@dataclass
class Reply:
    """`close`: "before" drops the connection unanswered, "after" once it is answered, without saying so."""

    content: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunked: bool = False
    close: str = ""


class Hold:
    """Keeps the client waiting, and notes that it went away."""

    def __init__(self) -> None:
        self.asked, self.left = threading.Event(), threading.Event()


def said(text: str, finish: str = "stop") -> Reply:
    """A chat completion of one choice."""
    return Reply({"model": "double", "choices": [{"finish_reason": finish, "message": {"role": "assistant", "content": text}}]})


class Server(ThreadingHTTPServer):
    """What it replies, a subclass says. `lock` guards what it keeps."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.connections = self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    def reply(self, body: dict[str, Any]) -> Reply | Hold:
        """What a request is answered with."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class Queue(Server):
    """Its replies in their order; the last one from then on."""

    def __init__(self, replies: list[Reply | Hold]) -> None:
        super().__init__()
        self._replies, self._given = replies, 0

    def reply(self, body: dict[str, Any]) -> Reply | Hold:
        with self.lock:
            self._given += 1
            return self._replies[min(self._given, len(self._replies)) - 1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.bodies.append(body)
            server.heads.append(dict(self.headers))
            server.paths.append(self.path)
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            reply = server.reply(body)
        finally:
            with server.lock:
                server.at_once -= 1
        if isinstance(reply, Hold):
            reply.asked.set()
            self.connection.settimeout(30)
            if not self.connection.recv(1):
                reply.left.set()
            self.close_connection = True
            return
        self.close_connection = bool(reply.close)
        if reply.close == "before":
            return
        data = reply.content.encode() if isinstance(reply.content, str) else json.dumps(reply.content).encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(data), 7):
                part = data[start : start + 7]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def serving(*replies: Reply | Hold) -> Iterator[Queue]:
    with running(Queue(list(replies))) as server:
        yield server


@contextmanager
def running(server: S) -> Iterator[S]:
    """The server, until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
