"""The processor time of a process tree counts what runs below a process, and what ran there."""

import os
import signal
import subprocess
import sys
import time

import pytest

from nbrl.infra.process.identity import busy_seconds, processor_seconds

pytestmark = pytest.mark.process

BURN = """
import subprocess, sys, time
if sys.argv[1] == "outer":
    subprocess.run([sys.executable, "-c", sys.argv[2], "inner", ""], check=True)
    print("ready", flush=True)
    sys.stdin.readline()
else:
    while time.process_time() < 0.5:
        pass
"""


def test_time_of_a_grandchild_counts_while_its_parent_lives_and_after() -> None:
    before = processor_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", BURN, "outer", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        assert processor_seconds() - before >= 0.45  # the kernel's ticks are coarse
        child.communicate("\n")
    assert processor_seconds() - before >= 0.45


def test_what_sleeps_is_not_busy_and_what_computes_below_it_is() -> None:
    shell = f"{sys.executable} -c 'print(1, flush=True)\nwhile True: pass' & wait"
    with subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, start_new_session=True) as busy:
        with subprocess.Popen(["sleep", "1000"]) as asleep:
            assert busy.stdout
            busy.stdout.readline()
            before, slept = busy_seconds(busy.pid), busy_seconds(asleep.pid)
            while busy_seconds(busy.pid) < before + 0.5:
                time.sleep(0.01)
            assert busy_seconds(asleep.pid) - slept < 0.1
            asleep.kill()
        os.killpg(busy.pid, signal.SIGKILL)
    assert busy_seconds(busy.pid) == 0.0
