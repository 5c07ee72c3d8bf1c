"""Files of engines outside of every folder of ours, and their removal."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
TEMPORARY = Path("/tmp")  # Unix socket paths are limited to 107 bytes: a folder below the home would be too deep
PREFIX = "nbrl-engine-"


def temporary() -> Path:
    """A new folder for the temporary files of an engine of this process: SGLang leaves sockets and others behind."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=TEMPORARY))


def sweep() -> None:
    """Remove what killed engines left: shared memory, and the temporary files of engines whose owner is gone."""
    for folder in TEMPORARY.glob(f"{PREFIX}*-*"):
        if not Path("/proc", folder.name.removeprefix(PREFIX).partition("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)
    for path in SHARED_MEMORY.glob("sglang_loads_*"):
        with contextlib.suppress(FileNotFoundError):  # another of our runs may sweep too
            if path.stat().st_uid == os.geteuid() and not _mapped(path):
                path.unlink()


def _mapped(path: Path) -> bool:
    """Whether some process of ours still has this shared memory open.

    Sandboxes, which have users of their own, are passed over: they give files of theirs any name, and map them as often as they
    like. Names are bytes, which need not be text.
    """
    users = os.readlink("/proc/self/ns/user")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = process.stat().st_uid == os.geteuid() and os.readlink(process / "ns/user") == users
            if ours and os.fsencode(path) in (process / "maps").read_bytes():
                return True
    return False
