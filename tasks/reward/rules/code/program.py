"""One of the two programs that judge code, as the host sees it: lines of limited length to it and from it, in limited time."""

import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType

from nbrl.infra.process.identity import busy_seconds
from nbrl.sandbox.start.program import confined_program
from nbrl.tasks.errors import RewardError
from nbrl.tasks.reward.rules.code.channel import READY
from nbrl.tasks.reward.rules.code.values import LINE_BYTES

START_S = 120.0
CHUNK = 1 << 16
FOLDER = Path(__file__).parent
PACKAGE = "nbrl/tasks/reward/rules/code"
SHARED = {f"{PACKAGE}/{name}": str(FOLDER / name) for name in ("channel.py", "values.py")}
CPU_S = 10.0  # of processor time of each program for one comparison: it decides, so that a busy machine changes no verdict
WALL_S = 60.0  # on the clock, once both programs have started
ASLEEP_S = 3.0  # that a program which is asked neither computes nor waits for a processor; looked at each second
LOOK_S = 1.0


class Program:
    """A program in a sandbox that holds nothing else; everything in it ends with this object."""

    def __init__(self, name: str) -> None:
        command = [*confined_program(FOLDER / name, SHARED), str(CPU_S)]
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}, cwd="/", bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._writing, self._reading = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._writing, False)
        self._read = b""
        self._asleep = 0.0

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._process.wait()

    def starts(self) -> None:
        """Wait until it is ready for orders. Raises RewardError if it ends before."""
        if self._line(time.monotonic() + START_S) != READY:
            self._process.kill()
            _, output = self._process.communicate()
            reason = (output.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:300]
            raise RewardError(f"the program {self._name}, which judges code, does not start: {reason}")

    def ask(self, line: bytes, end: float) -> bytes | None:
        """Return its answer to a line; None without one before the time `end`, if it sleeps, or for more than LINE_BYTES."""
        return self._line(end) if self._send(line, end) else None

    def _send(self, line: bytes, end: float) -> bool:
        """Return whether it took the line before the time `end`."""
        while line:
            if not self._ready(self._writing, select.POLLOUT, end):
                return False
            try:
                line = line[os.write(self._writing, line[: select.PIPE_BUF]) :]
            except OSError:  # it ended
                return False
        return True

    def _line(self, end: float) -> bytes | None:
        searched = 0
        while (place := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            if searched > LINE_BYTES or not self._ready(self._reading, select.POLLIN, end):
                return None
            if not (more := os.read(self._reading, CHUNK)):
                return None
            self._read += more
        line, self._read = self._read[: place + 1], self._read[place + 1 :]
        return line

    def _ready(self, descriptor: int, event: int, end: float) -> bool:
        """Wait for the event, or an end of the program, until the time `end`, or until it slept for ASLEEP_S in all."""
        poll = select.poll()  # descriptors of a busy process may be too large for select
        poll.register(descriptor, event)
        seen: tuple[float, float] | None = None
        while not poll.poll(max(0.0, min(LOOK_S, end - time.monotonic())) * 1000):
            now, busy = time.monotonic(), busy_seconds(self._process.pid)
            if seen is not None:
                self._asleep += max(0.0, now - seen[0] - (busy - seen[1]))
            seen = now, busy
            if now >= end or self._asleep > ASLEEP_S:
                return False
        return True
