"""The end of the process."""

import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.process
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
PROGRAM = """
import atexit, sys
from nbrl.flows.cli.ending import QuickEnd

class Module:
    def __del__(self):
        print("taken apart")

module = Module()
quick = QuickEnd()
atexit.register(print, "registered later")
quick.status = {status}
print("last line", end="")
sys.exit({code})
"""


def ended(status: int | None, code: int, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", PROGRAM.format(status=status, code=code)]
    return subprocess.run(line, stdout=stdout, stderr=subprocess.PIPE, env=BUFFERED, text=True, timeout=60)


def test_what_was_registered_is_done_and_written_before_a_quick_end_with_its_status() -> None:
    done = ended(3, 3)
    assert (done.returncode, done.stdout, done.stderr) == (3, "last lineregistered later\n", "")


def test_without_a_status_python_ends_as_it_does_by_itself() -> None:
    done = ended(None, 5)
    assert (done.returncode, done.stdout) == (5, "last lineregistered later\ntaken apart\n")


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = ended(0, 0, full)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr
