"""A double of a grader behind the OpenAI chat API. What it replies depends on what it is asked alone."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nbrl.tasks.reward.judge.prompt import AGAIN

LINES = [re.compile(rf"^{name}: (.*)$", re.MULTILINE) for name in ("question", "references", "answer")]


class Grader(ThreadingHTTPServer):
    """An answer that equals a reference is right, `no idea` is no attempt, all else is wrong.

    Words in question or answer do more: with `twice` the first reply has several grades, with `never` each has, with `long` it is
    cut, and with `refused` its status is 400.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.broken = 0  # so many requests are answered with status 503 first
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def answers(self) -> list[str]:
        """The answers of which grades were asked for, sorted."""
        return sorted(json.loads(LINES[2].findall(body["messages"][-1]["content"])[0]) for body in self.bodies)

    def reply(self, body: dict[str, Any]) -> tuple[int, str, str]:
        said = body["messages"][-1]["content"]
        with self.lock:
            self.broken -= 1
            if self.broken >= 0:
                return 503, "", ""
        question, references, answer = (json.loads(found[0]) for found in (each.findall(said) for each in LINES))
        words = f"{question} {answer}".split()
        if "refused" in words:
            return 400, "", ""
        if "long" in words:
            return 200, "GRADE: CORRECT", "length"
        if "never" in words or ("twice" in words and AGAIN not in said):
            return 200, "GRADE: INCORRECT\nGRADE: CORRECT", "stop"
        grade = "CORRECT" if answer in references else "NOT_ATTEMPTED" if answer == "no idea" else "INCORRECT"
        return 200, f"I compared them.\nGRADE: {grade}", "stop"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Grader

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.bodies.append(body)
            server.heads.append(dict(self.headers))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        status, text, finish = server.reply(body)
        choice = {"finish_reason": finish, "message": {"role": "assistant", "content": text}}
        data = json.dumps({"model": "double", "choices": [choice]}).encode()
        with server.lock:
            server.at_once -= 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def grading() -> Iterator[Grader]:
    server = Grader()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
