"""The sandbox as an ordinary user: without root there is no other uid to hide behind, and often no control group."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nbrl.sandbox.walls.interpreter import MADE

pytestmark = pytest.mark.sandbox

# Of nobody else here: the system counts pipes, signals and more by user.
_UID = 20_000 + os.getpid() % 40_000
_CHECKOUT = Path(__file__).parents[2]
_POOL = "tests/sandbox/test_sandbox_pool.py"
_KERNELS_PYTHON = "tests/sandbox/test_sandbox_environment.py::test_kernels_have_the_environment_that_set_up_made"
_ALL = ["tests/hostile", "tests/sandbox/test_sandbox_kernel.py", _POOL]


@pytest.mark.more
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "tests",
    [
        pytest.param(["tests/hostile", _POOL, "-k", "zygote or pool"], id="zygote"),
        pytest.param(_ALL, id="all", marks=pytest.mark.long),
    ],
)
def test_hostile_cells_meet_the_same_walls_as_an_ordinary_user(tests: list[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already: these tests have been run so")
    more = [_KERNELS_PYTHON] if MADE.exists() else []  # the attacks are to meet the kernels that users have
    home = tempfile.mkdtemp(prefix="nbrl-user-")
    os.chown(home, _UID, _UID)
    try:
        command = [sys.executable, str(Path(__file__).with_name("as_user.py")), str(_UID), str(_CHECKOUT), home, *more, *tests]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout
        assert "skipped" not in done.stdout
    finally:
        shutil.rmtree(home)
