"""A preparation of data or a warm start that is killed in front of any of its writes goes on, and makes the same bytes."""

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.durability.conftest import Labs
from tests.durability.crash_doubles import DIED
from tests.durability.crash_lab import ASKED, Lab

pytestmark = pytest.mark.process

SHARES = [random.Random(seed).uniform(0.05, 0.95) for seed in range(4)]


class Whole(NamedTuple):
    """What a work made that nothing disturbed, by name, and its number of steps."""

    work: str
    made: dict[str, bytes]
    steps: int


def run(lab: Lab, work: str, folder: Path, **how: Any) -> dict[str, Any]:
    return lab.train(folder / "out", folder / "home", work=work, **how)


def files(folder: Path) -> dict[str, bytes]:
    """Everything that lies beside the home, by name."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if (folder / "home") not in path.parents}


@pytest.fixture(scope="module", params=["prepare", "warmstart"])
def whole(request: pytest.FixtureRequest, labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp(request.param)
    done = run(labs[0], request.param, folder)
    assert done["status"] == 0, done["said"]
    return Whole(request.param, files(folder), done["steps"])


def check(lab: Lab, folder: Path, whole: Whole, point: int) -> None:
    died = run(lab, whole.work, folder, die_at=point)
    assert died["status"] == DIED, died["said"]
    done = run(lab, whole.work, folder)
    assert done["status"] == 0, done["said"]
    assert files(folder) == whole.made, f"killed in front of step {point}"
    if whole.work == "prepare":  # only the rating that was on its way is paid for twice
        asked = (folder / "home" / ASKED).read_text().splitlines()
        assert len(asked) - len(set(asked)) <= 1
    shutil.rmtree(folder)


@pytest.mark.parametrize("share", [SHARES[0], *(pytest.param(share, marks=pytest.mark.more) for share in SHARES[1:])])
def test_killed_work_ends_as_if_it_had_not_been(labs: Labs, whole: Whole, tmp_path: Path, share: float) -> None:
    check(labs[0], tmp_path / "work", whole, round(share * whole.steps))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_work_can_be_killed_in_front_of_any_of_its_writes(labs: Labs, whole: Whole, tmp_path: Path) -> None:
    for point in range(1, whole.steps + 1):
        check(labs[0], tmp_path / "work", whole, point)
