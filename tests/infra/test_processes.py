"""Nothing outlives its owner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nbrl.infra.process.child import PORTS, Child, free_port, port_in_use

pytestmark = pytest.mark.process

TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["setsid", "sleep", "1000"])
subprocess.Popen([sys.executable, "-c", "import os,time\\nif os.fork(): os._exit(0)\\nos.setsid()\\ntime.sleep(1000)"])
print("ready", flush=True)
time.sleep(1000)
"""
OWNER = """
import os, sys, time
from pathlib import Path
from nbrl.infra.process.child import Child
child = Child.start([sys.executable, "-c", sys.argv[1]], env=dict(os.environ), log=Path(sys.argv[2]), name="tree", grace_s=0.2)
print(child.pid, flush=True)
time.sleep(1000)
"""

Find = Callable[[str], list[int]]


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def start(code: str, log: Path, mark: str = "", grace_s: float = 3.0) -> Child:
    return Child.start(
        [sys.executable, "-c", code], env={**os.environ, "MARK": mark or str(log)}, log=log, name="test", grace_s=grace_s
    )


def ready(child: Child) -> bool:
    return until(lambda: "ready" in child.log_tail())


def test_stop_ends_the_whole_tree(tmp_path: Path, processes: Find) -> None:
    child = start(TREE, tmp_path / "log")
    assert ready(child)
    assert until(lambda: len(processes(str(tmp_path))) == 4)  # keeper, command, two that detached themselves
    child.stop(grace_s=0.2)
    assert not child.alive
    assert processes(str(tmp_path)) == []
    assert child.wait(0) == 128 + signal.SIGKILL
    child.stop()


def test_sigterm_comes_first(tmp_path: Path) -> None:
    code = "import signal,sys,time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('ready', flush=True)\ntime.sleep(1000)"
    child = start(code, tmp_path / "log")
    assert ready(child)
    child.stop()
    assert child.wait(0) == 7


def test_ends_by_itself_with_its_own_status_and_leaves_nothing(tmp_path: Path, processes: Find) -> None:
    child = start("import subprocess,sys; subprocess.Popen(['sleep', '1000']); print('bye'); sys.exit(3)", tmp_path / "log")
    assert child.wait(10) == 3
    assert child.log_tail() == ["bye"]
    assert processes(str(tmp_path)) == []


def test_command_that_does_not_exist(tmp_path: Path) -> None:
    child = Child.start(["/no/such/program"], env={}, log=tmp_path / "log", name="test")
    assert child.wait(10) == 127
    assert child.log_tail() == ["cannot run /no/such/program: No such file or directory"]


def test_owner_killed_with_kill_9(tmp_path: Path, processes: Find) -> None:
    log = tmp_path / "log"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, TREE, str(log)], env={**os.environ, "MARK": str(tmp_path)}, stdout=subprocess.PIPE
    )
    assert until(lambda: log.exists() and b"ready" in log.read_bytes())
    assert len(processes(str(tmp_path))) >= 4
    owner.kill()
    owner.wait()
    assert until(lambda: processes(str(tmp_path)) == [], 5)


def test_keeper_killed_with_kill_9_takes_the_command_with_it(tmp_path: Path, processes: Find) -> None:
    child = start("print('ready', flush=True)\nimport time; time.sleep(1000)", tmp_path / "log")
    assert ready(child)
    os.kill(child.pid, signal.SIGKILL)
    assert until(lambda: processes(str(tmp_path)) == [], 5)


def test_has_no_part_in_the_terminal_s_signals(tmp_path: Path) -> None:
    child = Child.start(
        [sys.executable, "-c", "import os; print(os.getsid(0))"], env=dict(os.environ), log=tmp_path / "sid", name="test"
    )
    child.wait(10)
    assert child.log_tail() == [str(child.pid)]
    assert child.pid != os.getsid(0)


def test_signals_to_the_keeper_do_nothing(tmp_path: Path) -> None:
    child = start("print('ready', flush=True)\nimport time; time.sleep(1000)", tmp_path / "log")
    assert ready(child)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.pid, number)
    time.sleep(0.2)
    assert child.alive
    child.stop()


def test_environment_is_exactly_what_was_given(tmp_path: Path) -> None:
    child = Child.start(["/usr/bin/env"], env={"ONLY": "this"}, log=tmp_path / "log", name="test")
    child.wait(10)
    assert child.log_tail() == ["ONLY=this"]


def test_costs_little(tmp_path: Path) -> None:
    started = time.process_time()
    children = [start("", tmp_path / f"log{number}") for number in range(5)]
    assert (time.process_time() - started) / 5 < 0.05
    for child in children:
        child.wait(20)


def test_ports() -> None:
    port = free_port()
    assert PORTS[0] <= port < PORTS[1]
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert port_in_use(port)
    assert not port_in_use(port)


def test_the_log_before_is_kept_and_each_child_reads_its_own(tmp_path: Path) -> None:
    first = start("print('first')", tmp_path / "x.log")
    first.wait(10)
    second = start("print('second')", tmp_path / "x.log")
    second.wait(10)
    assert (tmp_path / "x.previous.log").read_text() == "first\n"
    assert (first.log_tail(), second.log_tail()) == (["first"], ["second"])


@pytest.mark.parametrize("lines", [1, 3])
def test_log_tail(tmp_path: Path, lines: int) -> None:
    child = start("print('one\\n\\ntwo\\n  \\nthree')", tmp_path / "log")
    child.wait(10)
    assert child.log_tail(lines) == ["one", "two", "three"][-lines:]


ORPHAN = """
import os, signal, subprocess, sys, time
from nbrl.infra.process.identity import end_with_parent

if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(0.1)
    print(os.getpid(), flush=True)
    time.sleep(600)
else:
    subprocess.run([sys.executable, __file__, "child"])
"""


def test_a_process_that_takes_no_signal_ends_soon_after_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "orphan.py"
    program.write_text(ORPHAN)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
