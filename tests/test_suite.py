"""How the suite is cut into parts: each test is in one of them, and what changed chooses its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.budget import command_of
from tests.conftest import _carried
from tests.shards import concerned, deal, within
from tests.turn import LONGEST_S, PARTS, PAUSE_S, due, landings

COSTS = st.dictionaries(st.text(min_size=1), st.floats(0, 300), max_size=40)


@given(COSTS, st.integers(1, 10))
def test_every_unit_is_in_one_shard_and_no_shard_costs_more_than_another_by_more_than_a_unit(
    costs: dict[str, float], shards: int
) -> None:
    dealt = deal(costs, shards)
    assert len(dealt) == shards
    assert sorted(name for shard in dealt for name in shard) == sorted(costs)
    sums = [sum(costs[name] for name in shard) for shard in dealt]
    assert max(sums) - min(sums) <= max(costs.values(), default=0) + 1e-6
    assert dealt == deal(dict(reversed(costs.items())), shards)


@given(COSTS, st.floats(0, 600))
def test_what_fits_costs_no_more_than_the_limit_and_the_rest_is_named(costs: dict[str, float], limit: float) -> None:
    fitting, others = within(list(costs), costs, limit)
    assert sum(costs[name] for name in fitting) <= limit
    assert sorted([*fitting, *others]) == sorted(costs)


def test_a_changed_file_concerns_the_tests_of_its_folder_first_those_of_its_name() -> None:
    assert concerned(["tasks/learner/step/optimizer.py"]) == ["tests/tasks/learner/test_optimizer", "tests/tasks/learner/"]
    assert concerned(["sandbox/pool.py"])[:2] == ["tests/sandbox/test_pool", "tests/sandbox/"]
    assert "tests/hostile/" in concerned(["sandbox/pool.py"])
    assert "tests/flows/test_loop.py" in concerned(["infra/process/child.py"])
    assert concerned(["tests/flows/test_show.py", "README.md"]) == ["tests/flows/test_show.py"]


def test_each_part_has_its_turn_once_in_as_many_landings() -> None:
    assert [due(count) for count in range(2 * len(PARTS))] == [*PARTS, *PARTS]
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert all(f"\n{part.split()[0]}: setup" in makefile for part in PARTS)


def test_commits_without_a_pause_between_are_one_landing() -> None:
    assert [landings(times) for times in ([], [7], [0, PAUSE_S, 2 * PAUSE_S], [0, PAUSE_S + 1])] == [0, 1, 1, 2]
    busy = range(0, 3 * LONGEST_S, PAUSE_S // 2)
    assert landings(busy) == 3


def test_a_test_is_run_by_the_slowest_command_that_it_names() -> None:
    assert [command_of(marks) for marks in ({"e2e"}, {"more"}, {"long", "more"}, {"machines", "long"})] == [
        *("test", "more", "long", "machines"),
    ]


def test_what_a_worker_reports_keeps_its_shape_and_half_a_character_is_spelled_out() -> None:
    assert _carried({"longrepr": ("file", 3, "Skipped: \ud800"), "sections": [["a", "b"]]}) == {
        "longrepr": ("file", 3, "Skipped: \\ud800"),
        "sections": [["a", "b"]],
    }


@pytest.mark.process
@pytest.mark.more
def test_a_test_over_the_budget_fails_the_session_and_a_skipped_one_is_in_junits_report(tmp_path: Path) -> None:
    repository = Path(__file__).parents[1]
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.conftest"]\n')
    (tmp_path / "test_these.py").write_text(
        "import time, pytest\n"
        "def test_busy():\n    end = time.process_time() + 0.6\n    while time.process_time() < end: pass\n"
        "@pytest.mark.skip(reason='not here')\ndef test_skipped(): pass\n"
    )
    line = [sys.executable, "-m", "pytest", "-c", str(repository / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)]
    line += ["-n", "1", "--junitxml", str(tmp_path / "report.xml"), "--budget", "0.5"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=repository, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Over the budget: test_these.py::test_busy" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert '<skipped type="pytest.skip" message="not here">' in (tmp_path / "report.xml").read_text()
