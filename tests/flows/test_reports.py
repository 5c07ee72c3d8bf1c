"""Failures and worse evaluations are reported by a webhook, with Prefect's real server."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from nbrl.infra import prefect_server
from nbrl.infra.home import Home

pytestmark = pytest.mark.process

PROGRAM = """
import asyncio, json, sys, time
from prefect import flow, get_client, tags
from nbrl.flows import evaluate as evaluation
from nbrl.flows.automations import keep_automations
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.evaluation.summary import Estimate, EvaluationSummary, Scores, Subject

async def twice():
    for _ in range(2):
        await keep_automations(sys.argv[1])
    async with get_client() as client:
        print(json.dumps(sorted(each.name for each in await client.read_automations())))

@flow(name="train", flow_run_name="train r")
def failing():
    raise RuntimeError('no "room" left')

asyncio.run(twice())
time.sleep(3)  # the server reads its automations every few seconds
with tags("nbrl"):
    failing(return_state=True)

half = Estimate(0.5, 0.4, 0.6, 4)
score = Scores("", "", 4, half, half, {})
summary = EvaluationSummary(
    name="e", recipe="tiny", subject=Subject(name="r@3", digest="d", run="r", updates=3), mode="agent", samples=1,
    environments=["world"], metrics={"success": 0.5}, scores=[score], trajectories=4, sampled_tokens=9, failed=0, unscored=0,
    seconds=1.0, processor_seconds=1.0, gpu_seconds=0.0, finished=0.0,
)
storage = Storage(StorageSettings(root=sys.argv[2]))
evaluation.emit_events(storage, summary)
for champion in (0.4, 0.75):
    evaluation.champion_score = lambda storage, summary: champion
    evaluation.emit_events(storage, summary)
"""


@pytest.fixture
def posted() -> Iterator[tuple[str, list[str]]]:
    """An address, and what was posted there."""
    found: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.more
def test_a_failure_and_a_worse_evaluation_are_each_reported_once(tmp_path: Path, posted: tuple[str, list[str]]) -> None:
    url, found = posted
    home = Home(tmp_path / "home")
    server = prefect_server.ensure(home)
    try:
        environment = os.environ | prefect_server.environment(home, server.url)
        line = [sys.executable, "-c", PROGRAM, url, str(tmp_path)]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [
            "nbrl: a flow run failed",
            "nbrl: a flow run without a sign of life has crashed",
            "nbrl: an evaluation is worse than the champion's",
            "nbrl: what crashed begins again",
        ]
        end = time.monotonic() + 60
        while len(found) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(2)
    finally:
        server.stop()
    assert len(found) == 2, found
    failed, worse = sorted(found, key=lambda text: "success" in text)
    reported = json.loads(worse)
    assert datetime.fromisoformat(reported.pop("time"))
    assert reported == {"evaluation": "e", "success": 0.5, "champion": 0.75}
    reported = json.loads(failed)
    assert datetime.fromisoformat(reported.pop("time"))
    assert reported == {
        "flow_run": "train r",
        "run": "train r",  # of a flow whose order names none
        "state": "Failed",
        "reason": 'Flow run encountered an exception: RuntimeError: no "room" left',
    }
