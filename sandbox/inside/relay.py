"""Runs a program beside a kernel: its requests to a port of loopback go to a socket in the workspace, behind which the host is.

It is called in the kernel, which has no other network. The program is as free as a cell is, and as walled in.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

_CHUNK = 1 << 16
_BACKLOG = 64
_FULL_S = 0.1


def run(spec: dict[str, Any]) -> int:
    """Run the command of a spec until it ends; return its exit status, negative for a signal.

    Its standard streams are files of the workspace. In its variables {port} is the port of the relay.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    port = str(listener.getsockname()[1])
    threading.Thread(target=_serve, args=(listener, spec["socket"]), daemon=True).start()
    command = list(spec["command"])
    variables = {name: value.replace("{port}", port) for name, value in spec["variables"].items()}
    if command[0] in ("python", "python3"):
        command[0] = sys.executable
    with open(spec["stdin"], "rb") as given, open(spec["stdout"], "wb") as said, open(spec["stderr"], "wb") as complained:
        process = subprocess.Popen(
            command, stdin=given, stdout=said, stderr=complained, env={**os.environ, **variables}, start_new_session=True
        )
        try:
            return process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            listener.close()


def _serve(listener: socket.socket, path: str) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            if listener.fileno() < 0:  # it was closed
                return
            time.sleep(_FULL_S)  # all descriptors are in use
            continue
        try:
            _join(client, path)
        except (OSError, RuntimeError):  # no descriptor, no thread: the program has too many connections
            client.close()


def _join(client: socket.socket, path: str) -> None:
    """Copy between a client and the host until both have ended."""
    host = socket.socket(socket.AF_UNIX)
    try:
        host.connect(path)
        for source, target in ((client, host), (host, client)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()
    except (OSError, RuntimeError):
        host.close()
        raise


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy what comes until its end, which is passed on."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
