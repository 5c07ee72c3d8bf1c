"""A preparation of data or a warm start that is killed in front of any of its writes goes on, and makes the same bytes."""

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.durability.conftest import Labs
from tests.durability.crash_lab import DIED, Lab

pytestmark = pytest.mark.process

Whole = tuple[dict[str, bytes], int]  # files and number of steps
SHARES = [random.Random(seed).uniform(0.05, 0.95) for seed in range(4)]


def run(lab: Lab, work: str, folder: Path, **how: Any) -> dict[str, Any]:
    return lab.train(folder / "out", folder / "home", work=work, **how)


def files(folder: Path) -> dict[str, bytes]:
    """Everything that lies beside the home, by name."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if (folder / "home") not in path.parents}


@pytest.fixture(scope="module")
def whole(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    @cache
    def made(work: str) -> Whole:
        folder = tmp_path_factory.mktemp(work)
        done = run(labs[0], work, folder)
        assert done["status"] == 0, done["said"]
        return files(folder), done["steps"]

    return made


def check(lab: Lab, work: str, folder: Path, whole: Whole, point: int) -> None:
    died = run(lab, work, folder, die_at=point)
    assert died["status"] == DIED, died["said"]
    done = run(lab, work, folder)
    assert done["status"] == 0, done["said"]
    assert files(folder) == whole[0], f"killed in front of step {point}"
    shutil.rmtree(folder)


@pytest.mark.parametrize("work", ["prepare", "warmstart"])
@pytest.mark.parametrize("share", [SHARES[0], *(pytest.param(share, marks=pytest.mark.more) for share in SHARES[1:])])
def test_killed_work_ends_as_if_it_had_not_been(
    labs: Labs, whole: Callable[[str], Whole], tmp_path: Path, work: str, share: float
) -> None:
    check(labs[0], work, tmp_path / "work", whole(work), round(share * whole(work)[1]))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("work", ["prepare", "warmstart"])
def test_work_can_be_killed_in_front_of_any_of_its_writes(
    labs: Labs, whole: Callable[[str], Whole], tmp_path: Path, work: str
) -> None:
    for point in range(1, whole(work)[1] + 1):
        check(labs[0], work, tmp_path / "work", whole(work), point)
