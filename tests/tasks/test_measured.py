"""What a training will take by one of its iterations."""

import mmap

import pytest

from nbrl.infra.gpu import MemoryPeak
from nbrl.tasks.runs.measured import Measured, duration, evaluations, in_lines
from nbrl.tasks.runs.recipes import load

METRICS = {
    "time/iteration": 100.0,
    "time/rollout": 40.0,
    "time/reward": 8.0,
    "time/update": 30.0,
    "rollout/trajectories": 96.0,
    "advantage/trajectories": 72.0,
}
MEASURED = Measured(start_s=30, metrics=METRICS, evaluated=192, memory=14e9, checkpoint=2_150_000_000)
FULL = ("rollout.prompts=24", "rollout.group_size=4")  # a full batch has 96 trajectories


def test_the_time_is_that_of_all_iterations_and_evaluations() -> None:
    config = load("tiny-cpu", ["iterations=6", *FULL])
    assert MEASURED.evaluation_s == pytest.approx(96.0)  # two seconds for every four trajectories
    assert MEASURED.iteration_s(config) == pytest.approx(110.0)  # a quarter of a batch was lacking in the measured update
    assert MEASURED.total_s(config) == pytest.approx(30 + 6 * 110 + 2 * 96)


@pytest.mark.parametrize("rolled_out", [96.0, 192.0, 288.0])
@pytest.mark.parametrize("overrides", [["rollout.group_size=4"], ["rollout.group_size=8", "select.resample_to=4"]])
def test_an_update_of_a_full_batch_takes_as_long_however_many_rounds_filled_it(rolled_out: float, overrides: list[str]) -> None:
    metrics = METRICS | {"rollout/trajectories": rolled_out, "advantage/trajectories": 96.0}
    config = load("tiny-cpu", ["rollout.prompts=24", *overrides])
    assert MEASURED.model_copy(update={"metrics": metrics}).iteration_s(config) == 100.0


@pytest.mark.parametrize(("every", "iterations", "expected"), [(0, 6, 2), (2, 6, 4), (2, 5, 4), (5, 6, 3), (6, 6, 2), (1, 3, 4)])
def test_an_evaluation_after_the_last_iteration_counts_once(every: int, iterations: int, expected: int) -> None:
    assert evaluations(load("tiny-cpu", [f"iterations={iterations}", f"evaluate.every={every}"])) == expected


def test_the_lines_say_time_memory_and_disk() -> None:
    said = in_lines(MEASURED, load("tiny-cpu", ["iterations=6", *FULL]))
    assert "start 30 s; an iteration 100.0 s (rollout 40.0, reward 8.0, update 30.0, publish 0.0), of whose 96 " in said
    assert "about 15 min for 6 iterations of 2 min with a full batch, and 2 evaluations of 2 min" in said
    assert "14 GB more" in said
    assert "2.15 GB" in said
    assert all(line.startswith("# ") for line in said.splitlines())


def test_an_iteration_without_an_update_says_so_and_no_disk() -> None:
    metrics = {key: value for key, value in METRICS.items() if key not in ("time/update", "advantage/trajectories")}
    skipped = MEASURED.model_copy(update={"metrics": metrics, "checkpoint": 0, "skipped": "all groups are alike"})
    assert skipped.iteration_s(load("tiny-cpu")) == 100.0
    assert "# no update was measured: all groups are alike" in in_lines(skipped, load("tiny-cpu"))
    assert "# disk" not in in_lines(skipped, load("tiny-cpu"))


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.4, "3 s"), (89, "89 s"), (600, "10 min"), (5400, "1 h 30 min"), (7260, "2 h 1 min")]
)
def test_a_duration_is_told_in_its_own_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_memory_that_was_given_back_counts_for_the_peak() -> None:
    size = 512 << 20
    with MemoryPeak() as memory, mmap.mmap(-1, size) as block:
        for start in range(0, size, mmap.PAGESIZE):
            block[start] = 1
        memory.look()
    assert memory.most_bytes > size // 2
