"""Identifies a process among those of all machines, and tells whether one of this machine still runs."""

import os
import re
import socket
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
FORM = re.compile(r"(?P<place>.+)/(?P<pid>[0-9]{1,10})/(?P<started>[0-9]+)")


def identity() -> str:
    """This process: where it runs, its number there and when it was started, since numbers are given again."""
    return f"{_place()}/{os.getpid()}/{_started(os.getpid())}"


def is_running(process: str) -> bool | None:
    """Whether the process with this identity runs; None where only another machine or container can know, or it is none."""
    found = FORM.fullmatch(process)
    if not found or found["place"] != _place():
        return None
    return _started(int(found["pid"])) == found["started"]


def _place() -> str:
    """This boot of this machine, and the container in whose numbers processes are counted."""
    return f"{socket.gethostname()}/{BOOT.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"


def _started(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty if there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
