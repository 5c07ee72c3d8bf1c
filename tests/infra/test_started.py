"""Servers that start: one that gives up for want of time is started again, and the sentence says whose limit it was."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbrl.infra.errors import ServerError
from nbrl.infra.process import health
from nbrl.infra.process.child import Child

pytestmark = pytest.mark.process

# The n-th start gives up after a while, the last one serves.
GIVES_UP = """
import sys, time
from pathlib import Path
tries = Path(sys.argv[1])
tries.write_text(tries.read_text() + "x")
print("The node timed out during startup" if len(tries.read_text()) < int(sys.argv[2]) else "serving", flush=True)
time.sleep(0.3 if len(tries.read_text()) < int(sys.argv[2]) else 60)
"""


def starts(tmp_path: Path, serving: int) -> Callable[[], Child]:
    tries = tmp_path / "tries"
    tries.write_text("")
    line = [sys.executable, "-c", GIVES_UP, str(tries), str(serving)]
    return lambda: Child.start(line, env={}, log=tmp_path / "log", name="Ray")


def serves(child: Child) -> bool:
    return child.log_tail(1) == ["serving"]


def test_what_gives_up_for_want_of_time_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "GAVE_UP_S", 0.0)
    start = starts(tmp_path, 3)
    child = health.started(start(), start, serves, 60.0, "Ray", "ray.start_timeout_s")
    assert child.alive
    child.stop()
    assert (tmp_path / "tries").read_text() == "xxx"


def test_what_ends_at_once_is_not_started_again(tmp_path: Path) -> None:
    start = starts(tmp_path, 3)
    with pytest.raises(ServerError, match=r"Ray ended while it started \(after \d+ s: exit status 0\).*: The node timed out"):
        health.started(start(), start, serves, 60.0, "Ray")
    assert (tmp_path / "tries").read_text() == "x"


def test_once_its_time_has_passed_the_sentence_names_the_limit_the_starts_and_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "GAVE_UP_S", 0.0)
    monkeypatch.setattr("os.getloadavg", lambda: (31.4, 30.0, 30.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    start = starts(tmp_path, 1000)
    sentence = (
        r"Ray did not start within 2 s, started \d+ times, on a busy machine \(load 31 on 2 cores\): The node timed out during "
        r"startup; raise ray\.start_timeout_s, or end other programs \(log: .*log\)"
    )
    with pytest.raises(ServerError, match=sentence):
        health.started(start(), start, serves, 2.0, "Ray", "ray.start_timeout_s")
