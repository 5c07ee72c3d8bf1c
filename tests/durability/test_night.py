"""A schedule that is due every minute: flow, engine, scheduler and machine are killed, and nothing is lost or doubled."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.runs import RunLayout
from tests.flows.conftest import NBRL, command
from tests.flows.made import audited, record
from tests.processes import left_over, mark

pytestmark = [pytest.mark.e2e, pytest.mark.long]

RUN, ITERATIONS = RunLayout("nightly"), 6
# A process namespace: all in it die with its first process, as on a machine without power.
MACHINE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def until(true: Callable[[], object], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)


def processes(of: subprocess.Popen[bytes], words: str) -> list[psutil.Process]:
    """Return the processes below one whose command line has these words."""
    found = []
    for process in psutil.Process(of.pid).children(recursive=True):
        try:
            if words in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Night:
    """A machine on which `nbrl schedule` serves a training that is due every minute."""

    def __init__(self, home: Path) -> None:
        self.storage = Storage(StorageSettings(root=f"{home}/storage"))
        settings = command(home, "nightly", f"iterations={ITERATIONS}", "evaluate.every=0")[5:]
        line = [str(NBRL), "schedule", "train", "--recipe", "tiny-cpu", "--run", "nightly", "--cron", "* * * * *"]
        self._line = [*MACHINE, *line, "--home", str(home), *settings]
        self._log = (home / "night.log").open("ab")
        self.machine = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.machine = subprocess.Popen(self._line, stdout=self._log, stderr=self._log, env=mark("night"))
        return self.machine

    @property
    def first(self) -> psutil.Process:
        """Return the first process of the machine, `nbrl schedule`."""
        (process, *_) = psutil.Process(self.machine.pid).children()
        return process

    def recorded(self) -> int:
        return sum(self.storage.exists(RUN.iteration(number).record) for number in range(ITERATIONS))

    def in_iteration(self, number: int) -> bool:
        """Return whether this iteration has begun: its prompts are there."""
        return any(key.endswith("prompts.parquet") for key in self.storage.list(RUN.iteration(number).folder))

    def kill(self, words: str) -> None:
        (process, *_) = processes(self.machine, words)
        process.kill()

    def off(self) -> None:
        """Kill the first process of the machine, and with it all others."""
        self.first.kill()
        self.machine.wait()
        until(lambda: left_over("night") == [], 60)


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    if os.geteuid() != 0:
        pytest.skip("a machine of namespaces needs root")
    night = Night(tmp_path)
    yield night
    if night.machine.poll() is None:
        night.off()


@pytest.mark.timeout(3600)
def test_a_night_of_kills_loses_nothing_and_does_nothing_twice(night: Night, tmp_path: Path) -> None:
    for number, kill in enumerate(
        (
            lambda: night.kill("prefect.engine"),  # the flow: by the kernel, for want of memory
            lambda: night.kill("sglang"),  # an engine
            lambda: (night.off(), night.start()),  # the machine
            lambda: (night.first.send_signal(signal.SIGTERM), night.machine.wait(), night.start()),  # the scheduler, in order
        ),
        start=1,
    ):
        until(lambda number=number: night.recorded() >= number and night.in_iteration(night.recorded()))  # type: ignore[misc]
        kill()
    until(lambda: night.storage.exists(RUN.summary), 900)
    epochs = [record(night.storage, "nightly", number).epoch for number in range(ITERATIONS)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) >= 3
    audited(f"{tmp_path}/storage", "nightly", tmp_path)
