"""Temporary folders: whose they are, and what becomes of those of killed processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbrl.infra.paths import scratch

USER = """
import sys
from pathlib import Path
from nbrl.infra.paths import scratch
with scratch(Path(sys.argv[1]), "run") as folder:
    (folder / "a").write_text("used")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_empty_and_gone_afterwards(tmp_path: Path) -> None:
    with scratch(tmp_path / "s", "run.v1") as folder, scratch(tmp_path / "s", "run.v1") as another:
        assert folder != another
        assert os.listdir(folder) == []
        (folder / "a").write_text("")
    assert os.listdir(tmp_path / "s") == []


@pytest.mark.process
def test_a_folder_in_use_stays_and_that_of_a_killed_process_is_deleted(tmp_path: Path) -> None:
    user = subprocess.Popen([sys.executable, "-c", USER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with user:
        assert user.stdout is not None
        user.stdout.readline()
        with scratch(tmp_path, "run"):
            assert [path.read_text() for path in tmp_path.glob("run-*/a")] == ["used"]
        user.kill()
    with scratch(tmp_path, "run"):
        assert not list(tmp_path.glob("run-*/a"))
    assert os.listdir(tmp_path) == []
