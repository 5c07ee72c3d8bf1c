"""A real run survives the death of any of its parts, and computes what it would have computed without."""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.infra.tracking_ui import ui
from tests.clouds import Faults, Proxy, s3_server
from tests.flows.golden import FILE, digests, machine
from tests.flows.made import audited
from tests.flows.test_loop import NBRL, command
from tests.processes import check_gone, descendants, mark, stat

pytestmark = [pytest.mark.e2e, pytest.mark.more]

SCHEDULER, DETOKENIZER = "sglang::scheduler", "sglang::detokenizer"
RANK, RUNNER = "ray::RayTrainWorker", "ray::Runner"
RAYLET, GCS, PREFECT, ZYGOTE = "raylet/raylet", "gcs_server", "prefect.server.api.server", "zygote"


class Place:
    """A storage root, the folder in which its objects are files, and the variables with which it is reached."""

    def __init__(self, root: str, files: Path, variables: dict[str, str] | None = None) -> None:
        self.root, self.files, self.variables = root, files, variables or {}


class Running:
    """`nbrl train`, whose lines on stderr are read as they come."""

    def __init__(self, home: Path, place: Place, name: str, *overrides: str) -> None:
        self.place, self.name, self.said = place, name, list[str]()
        line = command(home, name, f"storage.root={place.root}", *overrides)
        environment = mark(name) | place.variables
        self._process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line.rstrip())

    def until(self, pattern: str, times: int = 1) -> str:
        """Wait for so many lines like this one; the last of them."""
        while True:
            alive = self._process.poll() is None
            if len(found := [line for line in self.said if re.search(pattern, line)]) >= times:
                return found[-1]
            assert alive, self.said
            time.sleep(0.05)

    def busy(self, node: str, iteration: int) -> None:
        """Wait until the node before this one has written its table."""
        folder = self.place.files / "runs" / self.name / "iterations" / f"{iteration:06d}"
        before = {"rollout": "prompts.parquet", "update": "advantages.parquet"}[node]
        while not list(folder.rglob(before)):
            assert self._process.poll() is None, self.said
            time.sleep(0.02)
        time.sleep(0.3)  # so that the node itself has begun, most often; the part may die at any time

    def strike(self, word: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the first of its processes that is of this kind."""
        while not (found := [pid for pid in descendants(self._process.pid) if _is(pid, word)]):
            assert self._process.poll() is None, self.said
            time.sleep(0.05)
        os.kill(found[0], number)

    def ends(self) -> None:
        """Wait for its end, which must be a success that leaves no process behind."""
        assert self._process.wait() == 0, self.said
        self._reading.join(10)
        assert "Traceback" not in "\n".join(self.said)
        check_gone(self.name)
        audited(self.place.files, self.name)

    def ended_by_ray(self) -> bool:
        """Whether the process ends in the seconds in which Ray ends one that writes to its object store, whose raylet is dead."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.poll() is None:
            return False
        self._reading.join(10)
        return not any("all services are started again" in line or line.startswith("nbrl: error") for line in self.said)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _is(pid: int, word: str) -> bool:
    """Whether a process is of this kind by its command line, and not the keeper of one."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return word.encode() in line and b"keeper.py" not in line and stat(pid)[0] not in "ZX"
    return False


@pytest.fixture
def same_as_ever(request: pytest.FixtureRequest) -> Callable[[Running], None]:
    """Compares a run bit for bit with the digests on record or, on another processor, with a run that nothing disturbed."""

    def compare(running: Running) -> None:
        found = digests(Storage(StorageSettings(root=str(running.place.files))), running.name, 3)
        known = json.loads(FILE.read_text())
        if machine() in known:
            assert found == known[machine()]
        else:
            assert found[:2] == digests(request.getfixturevalue("storage"), "small", 2)

    return compare


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A folder, or an S3 server behind a proxy that refuses, delays, cuts and drops 1 % of all requests each."""
    if request.param == "folder":
        yield Place(f"{tmp_path}/storage", tmp_path / "storage")
        return
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as variables, Proxy(variables["AWS_ENDPOINT_URL"], Faults(0.01, 0).next) as proxy:
        yield Place("s3://bucket/root", tmp_path / "s3/bucket/root", variables | {"AWS_ENDPOINT_URL": proxy.url})


@pytest.fixture
def run(tmp_path: Path, place: Place) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(name: str, *overrides: str) -> Running:
        started.append(Running(tmp_path, place, name, *overrides))
        return started[-1]

    yield start
    for running in started:
        running.kill()


def test_killed_engine_and_killed_learner_are_started_again(
    run: Callable[..., Running], same_as_ever: Callable[[Running], None]
) -> None:
    running = run("parts")
    running.busy("rollout", 0)
    running.strike(SCHEDULER)
    line = running.until("engine 0 ended")
    assert re.fullmatch(
        r"engine 0 ended \((its scheduler ended: )?killed by signal 9\); started again in \d+ s, nothing was lost", line
    )
    running.busy("update", 1)
    running.strike(RANK)
    running.ends()
    assert running.said.count(line) == 1
    assert (
        len([line for line in running.said if "the learner has ended" in line and "its order is carried out again" in line]) == 1
    )
    assert len([line for line in running.said if line.startswith("iteration")]) == 3
    same_as_ever(running)


@pytest.mark.long
@pytest.mark.parametrize("word", [RAYLET, GCS])
def test_a_run_outlives_its_ray_cluster(run: Callable[..., Running], same_as_ever: Callable[[Running], None], word: str) -> None:
    running = run("ray")
    running.busy("rollout", 1)
    running.strike(word)
    if word == RAYLET and running.ended_by_ray():
        running = run("ray")
    else:
        line = running.until("all services are started again")
        assert re.match(
            r"Ray ended \(its (raylet|gcs_server) ended: killed by signal 9; its log is .*; all services are started", line
        )
    running.ends()
    same_as_ever(running)


@pytest.mark.long
def test_a_run_outlives_its_prefect_server(run: Callable[..., Running], same_as_ever: Callable[[Running], None]) -> None:
    running = run("prefect")
    running.busy("rollout", 0)
    running.strike(PREFECT)
    running.until("the Prefect server ended; started again in")
    running.busy("rollout", 2)
    running.strike(PREFECT)
    running.ends()
    same_as_ever(running)


@pytest.mark.long
def test_a_runner_may_die_twice_and_a_zygote_too(run: Callable[..., Running], same_as_ever: Callable[[Running], None]) -> None:
    running = run("runner")
    for iteration in range(2):
        running.busy("rollout", iteration)
        running.strike(RUNNER)
        running.until("a runner ended and was started again", iteration + 1)
    running.busy("rollout", 2)
    running.strike(ZYGOTE)
    running.ends()
    same_as_ever(running)


@pytest.mark.long
def test_an_engine_that_is_killed_again_between_rollouts_and_one_that_stops(run: Callable[..., Running]) -> None:
    running = run("engine", "agent.deadline_s=300")
    running.busy("update", 0)
    running.strike(DETOKENIZER)
    running.until("engine 0 ended")
    running.busy("rollout", 1)
    running.strike(SCHEDULER, signal.SIGSTOP)
    running.until("engine 0 did not answer for 60 s; started again")
    running.ends()


@pytest.mark.long
def test_a_run_outlives_its_mlflow_server_and_is_delivered_later(
    run: Callable[..., Running], place: Place, tmp_path: Path
) -> None:
    books = Home(tmp_path / "books")
    page = ui(books)
    try:
        running = run("mlflow", f"tracking.uri={page.url}")
        running.until("iteration   1")
    finally:
        page.stop()
    running.ends()
    assert len([line for line in running.said if "warning: MLflow at" in line]) == 1
    assert "iterations of run 'mlflow' are not delivered to MLflow" in running.said[-1]
    page = ui(books)
    try:
        for verb in ("track", "audit"):
            line = [str(NBRL), verb, "mlflow", "--root", place.root, "--set", f"tracking.uri={page.url}"]
            environment = os.environ | place.variables
            done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment, check=False)
            assert done.returncode == 0, done.stderr + done.stdout
    finally:
        page.stop()
