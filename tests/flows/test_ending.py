"""The end of the process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
PROGRAM = """
import atexit, sys
from nbrl.flows.cli import main

class Module:
    def __del__(self):
        print("taken apart")

def work():
    atexit.register(print, "registered later")
    print("last line", end="")
    sys.exit({code})

main.kept = Module()
main.main = work
main.process()
"""


MAIN = """
import sys
import pytest
from nbrl.flows.cli.main import main

sys.argv = ["nbrl", "--version"]
with pytest.raises(SystemExit):
    main()
sys.exit(1)
"""
BLOCKED = """
import contextlib, os, signal, sys
from nbrl.flows.cli import main

def work():
    os.set_blocking(1, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(1, bytes(4096)):
            pass
    os.set_blocking(1, True)
    print("does not fit into the pipe", end="")
    signal.setitimer(signal.ITIMER_REAL, .2, .2)
    sys.exit(0)

signal.signal(signal.SIGALRM, signal.default_int_handler)
main.main = work
main.process()
"""


def ended(program: str, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", program]
    return subprocess.run(line, stdout=stdout, stderr=subprocess.PIPE, env=BUFFERED, text=True, timeout=60)


def test_what_was_registered_is_done_and_written_before_a_quick_end_with_its_status() -> None:
    done = ended(PROGRAM.format(code=3))
    assert (done.returncode, done.stdout, done.stderr) == (3, "last lineregistered later\n", "")


@pytest.mark.parametrize(("code", "status"), [(-1, 255), (2**31 + 5, 5)])
def test_a_status_is_cut_to_what_the_system_keeps(code: int, status: int) -> None:
    done = ended(PROGRAM.format(code=code))
    assert (done.returncode, done.stdout, done.stderr) == (status, "last lineregistered later\n", "")


def test_without_a_number_python_ends_as_it_does_by_itself() -> None:
    done = ended(PROGRAM.format(code="'an error'"))
    assert (done.returncode, done.stdout, done.stderr) == (1, "last lineregistered later\ntaken apart\n", "an error\n")


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = ended(PROGRAM.format(code=0), full)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["runs"], ["train", "--help"]])
def test_a_command_whose_output_cannot_be_written_says_so(arguments: list[str], tmp_path: Path) -> None:
    line = [sys.executable, "-m", "nbrl.flows.cli.main", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, env=BUFFERED, text=True, timeout=60, cwd=tmp_path)
    said = "nbrl: the output cannot be written: No space left on device; send it to another place\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_an_interrupt_ends_the_wait_for_a_reader_who_does_not_read() -> None:
    process = subprocess.Popen([sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED)
    assert process.wait(30) == 130
    process.communicate()


def test_the_command_line_in_another_process_leaves_its_status_alone() -> None:
    assert ended(MAIN).returncode == 1
