"""Two processes with homes of their own on one run: exactly one goes on, and nothing of the other mixes with its work."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.audit import Audit
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import known_run
from tests.durability.conftest import Labs
from tests.durability.crash_lab import RUN, Lab

pytestmark = pytest.mark.process

CLOUD = "s3://bucket/x"


def stopped(lab: Lab) -> dict[str, Any]:
    """Wait until the lab's process has stopped itself; its number, and what it was about to do."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if lab.paused.exists():
            told: dict[str, Any] = json.loads(lab.paused.read_text())
            if Path(f"/proc/{told['pid']}/stat").read_text().rpartition(") ")[2][0] == "T":
                return told
        time.sleep(0.05)
    raise AssertionError("the process did not stop")


def contend(labs: Labs | list[Lab], root: Path | str, folder: Path, point: int) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Stop one process in front of a step, let another take its run over, and let the first go on.

    Returns both ends, and whether the first held the run: where it does not have the lease yet, or all of the run is done, nobody
    is asked to take over.
    """
    labs[0].begin(root, folder / "first", pause_at=point)
    told = stopped(labs[0])
    storage, layout = Storage(StorageSettings(root=str(root))), RunLayout(RUN)
    held = storage.exists(layout.lease) and not storage.exists(layout.summary)
    try:
        second = labs[1].train(root, folder / "second")
        if held:
            assert second["status"] == 1
            assert f"run 'r' is being worked on by process {told['pid']} on " in second["said"]
            second = labs[1].train(root, folder / "second", take_over=True, lease_s=0.5)
    finally:
        os.kill(told["pid"], signal.SIGCONT)
    return labs[0].end(), second, held


def contradictions(root: Path | str) -> list[Any]:
    storage = Storage(StorageSettings(root=str(root)))
    run = known_run(storage, RUN)
    return list(Audit(storage, stored_config(storage, run), run, lambda said: None).contradictions())


@pytest.mark.more
@pytest.mark.parametrize("point", [15, 40, 58, 62, 85])
def test_the_one_that_took_over_goes_on(labs: Labs, tmp_path: Path, point: int) -> None:
    first, second, held = contend(labs, tmp_path / "root", tmp_path, point)
    assert held
    assert second["status"] == 0, second["said"]
    assert first["status"] == 1, first["said"]
    assert "taken over" in first["said"]
    assert contradictions(tmp_path / "root") == []


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_one_that_took_over_goes_on_wherever_the_other_was(labs: Labs, whole: tuple[Path, int], tmp_path: Path) -> None:
    for point in range(1, whole[1], 3):
        folder = tmp_path / str(point)
        first, second, held = contend(labs, folder / "root", folder, point)
        assert (second["status"], first["status"] in (0, 1)) == (0, True), second["said"]
        # Before it had the lease, it finds a finished run; near the end, what is left is not a matter of the run's writer.
        assert first["status"] == 1 or not held or point > whole[1] - 12, first["said"]
        assert contradictions(folder / "root") == [], f"stopped in front of step {point}"
        shutil.rmtree(folder)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_one_that_took_over_goes_on_in_the_cloud(cloud_labs: list[Lab], tmp_path: Path) -> None:
    for point in (15, 40, 62):
        root = f"{CLOUD}{point}"
        first, second, held = contend(cloud_labs, root, tmp_path / str(point), point)
        assert held
        assert second["status"] == 0, second["said"]
        assert first["status"] == 1, first["said"]
        assert contradictions(root) == []
