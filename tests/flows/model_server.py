"""A model server that plays written actions: a SGLang server's /generate, and the OpenAI chat API below /v1."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nbrl.agent.tokens.tokenizer import ChatTokenizer

TINY = Path("infra/policies/tiny").resolve()


class ModelServer(ThreadingHTTPServer):
    """Answers the n-th generation with the n-th action, later ones with the last; None keeps the client waiting.

    After `fail_after` generations it answers 400.
    """

    def __init__(self, actions: list[str | None], sglang: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.actions, self.sglang = actions, sglang
        self.tokenizer = ChatTokenizer.load(TINY)
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.ended = threading.Event()
        self.fail_after: int | None = None
        self.limit: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next_action(self, body: dict[str, Any]) -> str:
        self.asked.append(body)
        action = self.actions[min(len(self.asked), len(self.actions)) - 1]
        if action is None:
            self.ended.wait(60)
        return action or ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def do_GET(self) -> None:
        self.server.headers.append(dict(self.headers))
        match self.path:
            case "/get_model_info" if self.server.sglang:
                self._answer({"model_path": str(TINY), "tokenizer_path": str(TINY), "is_generation": True})
            case "/v1/models":
                self._answer({"data": [{"id": "scripted", "object": "model", "max_model_len": self.server.limit}]})
            case _:
                self._answer({"error": "no such page"}, 404)

    def do_POST(self) -> None:
        self.server.headers.append(dict(self.headers))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.fail_after is not None and len(self.server.asked) >= self.server.fail_after:
            self._answer({"error": "out of order"}, 400)
            return
        match self.path:
            case "/generate" if self.server.sglang:
                ids = self.server.tokenizer.encode_action(self.server.next_action(body))
                pairs = [[-0.1, number, None] for number in ids]
                self._answer(
                    {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": pairs, "weight_version": "1"}}
                )
            case "/v1/chat/completions":
                message = {"role": "assistant", "content": self.server.next_action(body)}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                self._answer({"id": "1", "object": "chat.completion", "model": "scripted", "choices": [choice]})
            case _:
                self._answer({"error": "no such page"}, 404)

    def _answer(self, content: Any, status: int = 200) -> None:
        data = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def model_server(*actions: str | None, sglang: bool = False) -> Iterator[ModelServer]:
    server = ModelServer(list(actions), sglang)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def act(code: str, think: str = "I think about it") -> str:
    return f"<think>{think}</think>\n<code>{code}</code>"
