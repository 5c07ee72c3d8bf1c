"""A real run that is killed again and again, and goes on from its storage, ends as one that nothing disturbed."""

from pathlib import Path

import pytest

from benchmarks.resume import CORRECTED, UNCORRECTED, measure

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(7200)]


@pytest.mark.parametrize(("root", "kills"), [("folder", 4), ("s3", 3)])
def test_kills_change_nothing(tmp_path: Path, root: str, kills: int) -> None:
    found = measure(kills, root, 1, tmp_path)
    assert found["survived"] == found["crash_points"] == kills
    assert found["bit_exact"]
    assert found["lost_prompts"] == found["doubled_prompts"] == 0
    assert found["audit_contradictions"] == found["processes_left"] == 0


@pytest.mark.parametrize("lag", ["1", "2"])
def test_kills_beside_an_update_change_nothing(tmp_path: Path, lag: str) -> None:
    found = measure(4, "folder", 2, tmp_path, lag, [UNCORRECTED])
    assert found["survived"] == found["crash_points"] == 4
    assert found["bit_exact"]
    assert found["lost_prompts"] == found["doubled_prompts"] == 0
    assert found["audit_contradictions"] == found["processes_left"] == 0


def test_a_stream_that_is_killed_loses_nothing_that_finished(tmp_path: Path) -> None:
    found = measure(4, "s3", 3, tmp_path, "stream", [CORRECTED])
    assert found["survived"] == found["crash_points"] == 4
    assert found["finished"] > 0
    assert found["finished_lost"] == found["finished_again"] == found["lost_prompts"] == found["doubled_prompts"] == 0
    assert found["audit_contradictions"] == found["processes_left"] == 0
