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
import os, signal, sys, time

def child():
    process = os.fork()
    while not process and time.process_time() < 0.2:
        pass
    return process

if not (ended := child()):
    os._exit(0)
os.waitpid(ended, 0)
if not (alive := child()):
    print("ready", flush=True)
    time.sleep(1000)
while time.process_time() < 0.2:
    pass
print("ready", flush=True)
sys.stdin.readline()
os.kill(alive, signal.SIGKILL)
os.waitpid(alive, 0)
"""


def test_processor_time_is_that_of_the_whole_tree_and_stays_when_its_processes_have_ended() -> None:
    before = processor_seconds()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert [child.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        while_it_lives = processor_seconds() - before
        child.communicate("\n")
    # Three processes of 0.2 s, whose counts are rounded down to hundredths; without one of them the sum is 0.4.
    assert min(while_it_lives, processor_seconds() - before) > 0.47


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
