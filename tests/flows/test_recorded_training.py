"""An agent elsewhere is trained: a training, a server that records, and a client that knows only an address and a key."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.process.child import free_port
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.world.world import World
from tests.flows.conftest import NBRL
from tests.flows.made import audited, record
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more]
RECIPE = """
base: tiny-cpu
iterations: 2
environments:
  live: {kind: recorded}
  world: {weight: 0, held_out: 4, abilities: [arithmetic]}
rollout: {prompts: 4, group_size: 4}
select: {drop_rate: 0.0}
"""
FORM = "Think, then write code with search(query), notepad.add_facts([...]), submit_final_answer(answer)."
BUDGET = "<budget>steps 4, tokens 100</budget>"
QUESTIONS = World.generate(5, "train", 64, ("arithmetic",)).questions


class Client:
    """An agent of one request. Its rewards differ within each group, so that the policy learns from every one."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key, self._numbers = url, key, count()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def session(self, number: int) -> int:
        """Play a session; return the weights that answered it."""
        question, name = QUESTIONS[number // 4 % len(QUESTIONS)], f"s{number}-{next(self._numbers)}"
        chat = [("system", FORM), ("user", question.question), ("user", BUDGET)]
        messages = [{"role": role, "content": text} for role, text in chat]
        self.post(f"/sessions/{name}/v1/chat/completions", {"messages": messages})
        reward = {"reward": number % 4 / 4, "group": f"q{number // 4}", "question": question.question, "right": [str(number)]}
        rewarded = self.post(f"/sessions/{name}/reward", reward)
        return int(rewarded["weights"])


@contextmanager
def started(folder: Path, name: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    log = folder / f"{name}.log"
    line = [str(NBRL), *words, "--home", str(folder / "home")]
    with log.open("w") as said:
        process = subprocess.Popen(line, stdout=said, stderr=said, text=True, env=mark(name), cwd=folder)
    try:
        yield process, log
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)
        check_gone(name)


def until(log: Path, pattern: str, process: subprocess.Popen[str]) -> re.Match[str]:
    for _ in range(1200):
        if found := re.search(pattern, log.read_text()):
            return found
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    raise AssertionError(f"{pattern} was not said: {log.read_text()[-3000:]}")


@contextmanager
def serving(folder: Path, name: str) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    port = free_port()
    words = ("--record", "--port", str(port), "--patience", "1", "--keep", f"{folder}/kept.jsonl")
    with started(folder, name, "serve", "live", *words) as (process, log):
        key = until(log, "the key is ([0-9a-f]+)", process)[1]
        yield process, Client(f"http://127.0.0.1:{port}", key)


def test_agents_elsewhere_are_trained_though_both_ends_are_killed(tmp_path: Path) -> None:
    (tmp_path / "live.yaml").write_text(RECIPE)
    train = ("train", str(tmp_path / "live.yaml"), "--run", "live")
    with ThreadPoolExecutor(8) as threads:
        with started(tmp_path, "first", *train) as (training, log):
            until(log, "evaluation after +0 updates", training)
            with serving(tmp_path, "killed") as (server, client):
                assert set(threads.map(client.session, range(7))) == {0}
                client.post("/sessions/lost/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
                os.kill(server.pid, signal.SIGKILL)
            os.kill(training.pid, signal.SIGKILL)
        with started(tmp_path, "second", *train) as (training, log), serving(tmp_path, "live") as (_, client):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                client.post("/sessions/lost/reward", {"reward": 1})
            assert set(threads.map(client.session, range(7, 16))) == {0}
            until(log, r"iteration +1 ", training)
            numbers, weights = count(16), set[int]()
            while training.poll() is None:
                with suppress(urllib.error.HTTPError):  # answered by weights that are no longer learned from
                    weights |= set(threads.map(client.session, [next(numbers) for _ in range(4)]))
            assert training.returncode == 0, log.read_text()[-3000:]
            assert weights >= {1}
    storage = Storage(StorageSettings(root=f"{tmp_path}/home/storage"))
    found = [record(storage, "live", number) for number in range(2)]
    assert [each.updates for each in found] == [1, 2]
    assert all(each.metrics["mismatch/logprob_max_abs"] <= 1e-3 for each in found)
    ids = [each.id for one in found for part in one.rounds[0].trajectories.parts for each in from_table(storage.read_table(part))]
    assert len(ids) == 32
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert {(QUESTIONS[number // 4].question, str(number)) for number in range(16)} <= {
        (each["question"], *each["answers"]) for each in kept
    }
    audited(f"{tmp_path}/home/storage", "live")
