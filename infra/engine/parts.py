"""The processes of one SGLang server, which is useless without any of them but takes seconds to see that one is gone, and the
files that a server leaves outside of every folder of ours.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nbrl.infra.process.child import in_words
from nbrl.infra.process.identity import has_ended, short_identity
from nbrl.infra.process.keeper import descendants

OURS = b"sglang::"  # how SGLang names them: scheduler, detokenizer
SHARED_MEMORY = Path("/dev/shm")
TEMPORARY = Path("/tmp")  # Unix socket paths are limited to 107 bytes: a folder below the home would be too deep
PREFIX = "nbrl-engine-"


class Parts:
    """The named processes below `root`, taken when the server serves."""

    def __init__(self, root: int) -> None:
        self._names = {pid: name for pid in descendants(root) if (name := _name(pid))}

    def gone(self) -> int | None:
        """Return a process that has ended, if any has."""
        return next((pid for pid in self._names if _state(pid) in ("", "Z", "X")), None)

    def ending(self, pid: int, log: Sequence[str]) -> str:
        """Return how that process ended: from the process, or from the server's `log` if it has been reaped."""
        status = _exit_status(pid)
        for line in log:
            if match := re.search(rf"pid={pid}\) crashed with exit code (-?\d+)", line):
                status = int(match[1])
        return f"its {self._names[pid]} " + ("ended" if status is None else f"ended: {in_words(status)}")


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if command.startswith(OURS):
            return command.removeprefix(OURS).split(b"\0")[0].decode(errors="replace")
    return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return []


def _state(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _exit_status(pid: int) -> int | None:
    """Return the status of a process that is not reaped yet, negative for a signal."""
    fields = _stat(pid)
    if not fields or fields[0] not in "ZX":
        return None
    status = int(fields[-1])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def temporary() -> Path:
    """Return a new folder for the temporary files of an engine of this process: SGLang leaves sockets and others behind."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{short_identity()}-", dir=TEMPORARY))


def sweep() -> None:
    """Remove what killed engines left: shared memory, and the temporary files of engines whose owner is gone."""
    for folder in TEMPORARY.glob(f"{PREFIX}*-*"):
        if has_ended(folder.name.removeprefix(PREFIX).partition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)
    for path in SHARED_MEMORY.glob("sglang_loads_*"):
        with contextlib.suppress(FileNotFoundError):  # another of our runs may sweep too
            if path.stat().st_uid == os.geteuid() and not _mapped(path):
                path.unlink()


def _mapped(path: Path) -> bool:
    """Return whether some process of ours still has this shared memory open.

    Sandboxes, which have users of their own, are skipped: they give files of theirs any name, and map them as often as they
    like. Names are bytes, which need not be text.
    """
    users = os.readlink("/proc/self/ns/user")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = process.stat().st_uid == os.geteuid() and os.readlink(process / "ns/user") == users
            if ours and os.fsencode(path) in (process / "maps").read_bytes():
                return True
    return False
