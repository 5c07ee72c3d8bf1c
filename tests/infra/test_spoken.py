"""A program that is spoken to in lines ends with its owner, and no line of it fills the memory."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbrl.infra.errors import InfraError
from nbrl.infra.process import spoken
from nbrl.infra.process.spoken import SpokenProcess
from tests.processes import check_gone, mark, marked

pytestmark = pytest.mark.process

ECHO = """
import os, sys
print("begun", flush=True)
with os.fdopen(int(sys.argv[1]), "rb") as lines:
    for line in lines:
        os.write(int(sys.argv[2]), line.upper())
"""
LONG = "import os, sys\nwhile True: os.write(int(sys.argv[2]), b'x' * 100_000)"
BROKEN = "import sys\nprint('first', flush=True)\nraise SystemExit('no data set')"
TREE = """
import os, subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "1000"])
os.write(int(sys.argv[2]), b"here\\n")
time.sleep(1000)
"""
OWNER = """
import asyncio, os, sys
from nbrl.infra.process.spoken import SpokenProcess
async def main():
    process = await SpokenProcess.start([sys.executable, "-c", sys.argv[1]], os.environ)
    await process.line()
    print("ready", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


async def started(code: str, name: str) -> SpokenProcess:
    return await SpokenProcess.start([sys.executable, "-c", code], mark(name))


def test_lines_go_both_ways_and_nothing_is_left_after_the_end() -> None:
    async def talk() -> list[bytes]:
        process = await started(ECHO, "echo")
        for number in range(3):
            await process.send(b"line %d" % number)
        await process.send(b"y" * 1_000_000)
        lines = [await process.line() for _ in range(4)]
        await process.stop()
        return lines

    lines = asyncio.run(talk())
    assert lines[:3] == [b"LINE 0\n", b"LINE 1\n", b"LINE 2\n"]
    assert lines[3] == b"Y" * 1_000_000 + b"\n"
    check_gone("echo")


def test_a_line_without_an_end_is_given_up_and_its_program_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spoken, "LINE_BYTES", 300_000)

    async def talk() -> None:
        process = await started(LONG, "long")
        with pytest.raises(InfraError, match="a line of more than 300000 bytes"):
            await process.line()
        await process.stop()

    asyncio.run(talk())
    check_gone("long")


def test_the_last_words_of_a_program_that_ends_are_in_the_error() -> None:
    async def talk() -> None:
        process = await started(BROKEN, "broken")
        with pytest.raises(InfraError, match="the program has ended; it wrote: first / no data set"):
            await process.line()
        await process.stop()
        with pytest.raises(InfraError, match="has ended"):
            await asyncio.gather(*(process.send(b"x") for _ in range(10)))

    asyncio.run(talk())


def test_what_it_started_ends_with_an_owner_that_is_killed() -> None:
    command = [sys.executable, "-c", OWNER, TREE]
    owner = subprocess.Popen(command, env=mark("owned"), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        end = time.monotonic() + 30
        while len(marked("owned")) < 4 and time.monotonic() < end:  # owner, keeper, program and what that started
            time.sleep(0.05)
        assert len(marked("owned")) == 4
        os.kill(owner.pid, signal.SIGKILL)
    finally:
        owner.kill()
        owner.wait()
    check_gone("owned")
