"""A schedule with every real part: Prefect's server, a worker of processes, and its death in the middle of an iteration."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from nbrl.infra import prefect_server
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.logs import Reader
from tests.flows.conftest import NBRL, command
from tests.flows.made import audited, record
from tests.processes import left_over, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more]

PREFECT = Path(sys.executable).with_name("prefect")
RUN = RunLayout("nightly")


def until(true: Callable[[], object], seconds: float = 400.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    server = prefect_server.ensure(Home(tmp_path / "server"))
    yield f"{server.url}/api"
    server.stop()


@pytest.fixture
def worker(tmp_path: Path, server: str) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "worker.log").open("ab") as log:
            environment = mark("worker") | {"PREFECT_API_URL": server, "PREFECT_HOME": str(tmp_path / "prefect")}
            line = [str(PREFECT), "worker", "start", "--pool", "small", "--type", "process"]
            started.append(subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, env=environment))
        return started[-1]

    yield start
    for each in started:
        each.kill()  # a worker that is asked to end may go on for as long as its schedule has flow runs
        each.wait()
    until(lambda: left_over("worker") == [], 240)


@pytest.mark.timeout(1500)
def test_a_killed_worker_takes_its_training_along_and_the_next_flow_run_continues_it_alone(
    tmp_path: Path, server: str, worker: Callable[[], subprocess.Popen[bytes]]
) -> None:
    storage = Storage(StorageSettings(root=f"{tmp_path}/storage"))
    settings = command(tmp_path, "nightly", "iterations=4")[5:]
    line = [str(NBRL), "deploy", "train", "--recipe", "tiny-cpu", "--run", "nightly", "--pool", "small", "--cron", "* * * * *"]
    for _ in range(2):  # to register it again changes nothing
        done = subprocess.run(
            [*line, *settings], capture_output=True, text=True, env=os.environ | {"PREFECT_API_URL": server}, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "train/nightly   * * * * *" in done.stdout
    assert "prefect worker start --pool small --type process" in done.stdout

    first = worker()
    until(lambda: storage.exists(RUN.iteration(0).record))
    until(lambda: any(key.endswith("prompts.parquet") for key in storage.list(RUN.iteration(1).folder)))
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    until(lambda: left_over("worker") == [], 240)
    done_before = len([key for key in storage.list(RUN.iterations) if key.endswith("/record.json")])
    assert 1 <= done_before < 4

    worker()
    # Prefect keeps the place of the flow run that died for five minutes.
    until(lambda: storage.exists(RUN.summary), 900)
    until(lambda: _lives(storage)[-1][1] is not None, 60)
    assert len(storage.list(RUN.epochs)) == 2
    (_, ended), (begun, last) = _lives(storage)
    assert ended is None or ended <= begun
    assert last is not None
    epochs = [record(storage, "nightly", number).epoch for number in range(4)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 2
    assert json.loads(storage.read_bytes(RUN.summary))["iterations"] == 4
    audited(f"{tmp_path}/storage", "nightly", tmp_path)


def _lives(storage: Storage) -> list[tuple[datetime, datetime | None]]:
    """When each start of the run began and, if it could still say so, ended."""
    lives: list[tuple[datetime, datetime | None]] = []
    for line in Reader(storage, RUN).lines():
        when, _, text = line.partition(" ")
        if text.startswith("run 'nightly' begins"):
            lives.append((datetime.fromisoformat(when), None))
        if text.startswith("ended: "):
            lives[-1] = lives[-1][0], datetime.fromisoformat(when)
    return lives
