"""Machines that are weaker than this one: commands that run a script where something is really taken away. As root only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
# The hidden mounts stay in /proc/self/mountinfo, as they do in many containers.
_HIDDEN = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]
_FEW = ["prlimit", "--nofile=256:256"]

WAYS = {"user": _USER, "hidden": _HIDDEN, "few descriptors": _FEW}

_PYTHONS = (sys.executable, "/usr/bin/python{}.{}".format(*sys.version_info))


# Kernels have the Python that runs the script, where theirs cannot be reached.
_REACHABLE = """
import os
from pathlib import Path
from nbrl.sandbox.walls import interpreter
if not os.access(interpreter.MADE / "bin/python", os.X_OK):
    interpreter.MADE = Path("/nowhere")
"""


def _starts(python: list[str]) -> bool:
    code = "import os, sys; sys.exit(not os.access(sys.executable, os.X_OK))"
    return subprocess.run([*python, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0


def run_in(way: str, script: str) -> str:
    """What `script` prints in the machine; it must succeed."""
    if os.geteuid() != 0:
        pytest.skip("only root can take things away")
    python = next(filter(_starts, ([*WAYS[way], path] for path in _PYTHONS)), None)
    if python is None:
        pytest.skip("no interpreter of this version can be reached there")
    paths = ":".join([str(Path(__file__).parents[2]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": "/tmp"}
    command = [*python, "-c", _REACHABLE + script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
