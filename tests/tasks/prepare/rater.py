"""A double of a rater and of a policy behind the OpenAI chat API. What it replies depends on what it is asked alone."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nbrl.tasks.prepare.rate import AGAIN

GARBLED = ("Sure! It is objective.", '{"objectivity": 1}', '{"objectivity": 2, "temporal_stability": 0}', "")


class Rater(ThreadingHTTPServer):
    """Rates by words in the question: `opinion` is subjective, `today` unstable, `garbled` gets a first reply that
    cannot be read, `hopeless` only such, and `broken` status 500 the first time.

    As a policy it knows the answers `answers`, by question, and gives them where the seed is below `knows`.
    """

    daemon_threads = True

    def __init__(self, answers: dict[str, str], knows: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.knows = answers, knows
        self.asked: list[str] = []  # what was answered with status 200, by what was asked
        self.begun = Counter[str]()
        self.said: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.lock = threading.Lock()
        self.hold_after: int | None = None  # so many answers are given, later ones wait for `released`
        self.held, self.released = threading.Event(), threading.Event()
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, body: dict[str, Any]) -> tuple[int, str]:
        name = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        said = body["messages"][-1]["content"]
        with self.lock:
            self.begun[name] += 1
            self.said.append(said)
            first = self.begun[name] == 1
            if self.status != 200 or ("broken" in said and first):
                return self.status if self.status != 200 else 500, ""
            hold = self.hold_after is not None and len(self.asked) >= self.hold_after
            if not hold:
                self.asked.append(name)
        if hold:
            self.held.set()
            self.released.wait(60)
            return 503, ""
        if "You rate questions" in body["messages"][0]["content"]:
            return 200, self._verdict(said)
        return 200, f"I think.\nAnswer: {self.answers[said] if body.get('seed', 0) < self.knows else 'no idea'}"

    def _verdict(self, said: str) -> str:
        if "hopeless" in said or ("garbled" in said and AGAIN not in said):
            return GARBLED[len(said) % len(GARBLED)]
        verdict = {"objectivity": -1 if "opinion" in said else 1, "temporal_stability": -1 if "today" in said else 1}
        return f"```json\n{json.dumps(verdict)}\n```" if "fenced" in said else json.dumps(verdict)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Rater

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heads.append(dict(self.headers))
        status, text = self.server.reply(body)
        message = {"role": "assistant", "content": text}
        data = json.dumps({"model": "double", "choices": [{"finish_reason": "stop", "message": message}]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def rating(answers: dict[str, str] | None = None, knows: int = 0) -> Iterator[Rater]:
    server = Rater(answers or {}, knows)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
