"""Programs of ours that read hostile files are confined as kernels are."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nbrl.sandbox.start.program import confined_program

pytestmark = pytest.mark.sandbox

_LOOK = """
import os, socket, sys, time
def attempt(action, *arguments):
    try:
        print("did", action(*arguments))
    except OSError:
        print("refused")
attempt(lambda: open("/proc/sys/kernel/core_pattern", "r+").close())
attempt(os.chmod, "/dev/null", 0o666)
attempt(socket.socket, socket.AF_INET)
attempt(lambda: [os.fork() or (time.sleep(1), os._exit(0)) for _ in range(40)])
held = ("Uid", "CapEff", "NoNewPrivs", "Seccomp:")
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith(held)), sys.argv[1:], sys.stdin.read())
"""


def test_a_program_has_no_root_no_network_few_processes_and_a_filter(tmp_path: Path) -> None:
    program = tmp_path / "look.py"
    program.write_text(_LOOK)
    done = subprocess.run(
        [*confined_program(program), "a", "b"], input="data", capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "1000 0000000000000000 1 2 ['a', 'b'] data"
    assert "did" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_ends_with_its_launcher(tmp_path: Path, number: int) -> None:
    program = tmp_path / "wait.py"
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    with subprocess.Popen(confined_program(program), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        pidfds = [os.pidfd_open(pid) for pid in children]
        process.send_signal(number)
    assert pidfds
    deadline = time.monotonic() + 20
    for pidfd in pidfds:
        while "Pid:\t-1" not in Path(f"/proc/self/fdinfo/{pidfd}").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.close(pidfd)
