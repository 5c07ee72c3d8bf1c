"""A disk without room ends a run with one sentence; with room again the run goes on as if it had always had it."""

import shutil
from pathlib import Path

import pytest

from tests.durability.conftest import Labs
from tests.durability.test_crash_points import state

pytestmark = pytest.mark.process


def check(labs: Labs, whole: tuple[Path, int], folder: Path, point: int) -> None:
    full = labs[0].train(folder / "root", folder / "home", full_at=point)
    assert full["status"] == 1, full["said"]
    assert "No space left on device" in full["said"]
    done = labs[0].train(folder / "root", folder / "home")
    assert done["status"] == 0, done["said"]
    assert state(folder) == state(whole[0]), f"full from step {point} on"


@pytest.mark.more
@pytest.mark.parametrize("point", [1, 30, 70, 100])
def test_a_run_goes_on_when_there_is_room_again(labs: Labs, whole: tuple[Path, int], tmp_path: Path, point: int) -> None:
    check(labs, whole, tmp_path, point)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_goes_on_when_there_is_room_again_wherever_it_ended(labs: Labs, whole: tuple[Path, int], tmp_path: Path) -> None:
    for point in range(2, whole[1] - 12, 5):
        check(labs, whole, tmp_path / str(point), point)
        shutil.rmtree(tmp_path / str(point))
