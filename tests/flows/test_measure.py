"""`nbrl train --measure`: one iteration is done with every real part, and nothing of it stays; of a recipe of `nbrl init`."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.flows.conftest import NBRL
from tests.flows.typed import nbrl
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more]


def test_a_measurement_says_time_memory_and_disk_and_leaves_nothing(tmp_path: Path) -> None:
    assert nbrl("init", "questions", str(tmp_path)).returncode == 0
    asked = [NBRL, "train", tmp_path / "my.yaml", "--run", "small", "--home", tmp_path / "home", "--measure"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=600, env=mark("measured"), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "\n# my: 6 iterations" in done.stdout
    assert re.search(r"# measured: start \d+ s; an iteration [\d.]+ s \(rollout [\d.]+, reward", done.stdout)
    assert re.search(r"# time: about \d+ (s|min) for 6 iterations of .*, and 2 evaluations of", done.stdout)
    assert re.search(r"# memory: [\d.]+ [MG]B more than before", done.stdout)
    assert re.search(r"# disk: a checkpoint took [\d.]+ MB", done.stdout)
    assert [path for path in (tmp_path / "home/storage").rglob("*") if path.is_file()] == []
    assert not list((tmp_path / "home/mlflow").glob("*.db"))
    check_gone("measured")
