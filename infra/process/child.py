"""Processes that never outlive their owner.

A `Child` is a command run under a keeper (see keeper.py) in a session of its own: the terminal's Ctrl-C does not reach it, its
owner ends it; when the owner ends in any way, the keeper ends the command with everything it started.
"""

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from nbrl.infra.errors import InfraError
from nbrl.infra.process import keeper

ORPHAN_GRACE_S = 3.0
TAIL = 1 << 16
# Below Linux's range for outgoing connections, so that none takes the port meanwhile; SGLang also wants port + 10000 to be one.
PORTS = (20000, 32000)


class Child:
    """A supervised process; use `start`. Belongs to the process that started it: not picklable, ended by `stop`."""

    def __init__(self, name: str, log: Path, output: BinaryIO, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.log = log
        self._output = output
        self._process = process

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        name: str,
        grace_s: float = ORPHAN_GRACE_S,
        pipe: int = subprocess.PIPE,
        cwd: Path | None = None,
    ) -> "Child":
        """Start `argv` with exactly `env`; its output goes to `log`. `grace_s` separates SIGTERM and SIGKILL if we die.

        A log that is already there is kept beside it, with `.previous` before its ending: why the last one ended may be in it.
        `pipe` is the read end of a pipe held by others than us, whose closing ends the child; by default it is ours alone.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [*kept(0, grace_s), *argv]
        if log.exists():
            log.replace(log.with_suffix(f".previous{log.suffix}"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                bufsize=0,
            )
        return cls(name, log, log.open("rb"), process)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the keeper's process id; the command and all it starts are its descendants."""
        return self._process.pid

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the command's own exit status once it has ended, 128 + signal when a signal ended it."""
        return self._process.wait(timeout_s)

    @property
    def ending(self) -> str:
        """Return how the command ended, in words, or that it runs."""
        status = self._process.poll()
        return "it lives" if status is None else in_words(status)

    def stop(self, grace_s: float = ORPHAN_GRACE_S) -> None:
        """End the command and everything it started; return when nothing is left. Does nothing if it already ended."""
        pipe = self._process.stdin
        if pipe is None:  # others hold it: its closing ends the child
            self._process.wait()
            return
        if not pipe.closed:
            with contextlib.suppress(BrokenPipeError):  # it may have ended by itself
                pipe.write(f"stop {grace_s}\n".encode())
            pipe.close()
        try:
            self._process.wait(grace_s + keeper.GIVE_UP_S + 5)
        except subprocess.TimeoutExpired:
            raise InfraError(
                f"{self.name} does not end; its processes are below process {self.pid}, its log is {self.log}"
            ) from None

    def log_tail(self, n: int = 20) -> list[str]:
        """Return the last `n` lines the command wrote that are not blank."""
        # Through our own descriptor: another child may have taken over the path.
        size = os.fstat(self._output.fileno()).st_size
        lines = os.pread(self._output.fileno(), TAIL, max(0, size - TAIL)).decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-n:]


def kept(pipe: int, grace_s: float = ORPHAN_GRACE_S) -> list[str]:
    """Return what to put before a command so that it ends, with everything it started, once the pipe's other end is closed.

    `pipe` is the number of the read end. If it is 0 the command has no standard input.
    """
    # -I and -S: the command's environment must not change how the keeper starts.
    return [sys.executable, "-I", "-S", keeper.__file__, str(grace_s), str(pipe)]


def in_words(status: int) -> str:
    """Return an exit status in words; signals are negative or, as in a shell, above 128."""
    number = -status if status < 0 else status - 128
    return f"killed by signal {number}" if number > 0 else f"exit status {status}"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free TCP port at an address of this machine (another process may take it before the caller does)."""
    while True:
        port = random.randrange(*PORTS)
        if not port_in_use(port, host):
            return port


def port_in_use(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
