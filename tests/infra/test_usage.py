"""The processor time of a process tree counts who lives below us, and who lived there."""

import subprocess
import sys

import pytest

from nbrl.infra.process.usage import processor_seconds

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
