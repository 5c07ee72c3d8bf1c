"""record: what an iteration is recorded with, and what becomes of a record that is lost or damaged."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.infra.errors import DamagedError, InfraError
from nbrl.tasks.errors import BrokenInvariantError, TakenOverError
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes import record as record_node
from nbrl.tasks.nodes.record import Timing, ages, lengths, record, seconds_of, times
from nbrl.tasks.nodes.rollout import rollout
from nbrl.tasks.runs.history import read_record
from nbrl.tasks.runs.redo import put_aside
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Weights
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.services.services import Services
from tests.tasks.checkpoint_lab import CONFIG
from tests.tasks.nodes.doubles import OURS, SCOPE, prompts, services


def test_overhead_is_what_neither_engines_kernels_nor_the_update_took() -> None:
    # An update that was found took 3 s, whatever it took once.
    found = {"update/compute_seconds": 9.0, "time/update": 3.0}
    assert times(found, Timing(0.0, alone_s=4.0), 10.0)["time/overhead"] == 3.0
    assert times({}, Timing(0.0, alone_s=4.0), 10.0)["time/overhead_share"] == pytest.approx(0.6)


def test_what_runs_beside_the_update_is_no_overhead_and_leaves_nobody_idle() -> None:
    update = {"update/compute_seconds": 6.0, "time/update": 7.0}
    found = times(update, Timing(0.0, alone_s=0.0, beside_s=8.0), 10.0)
    assert found["time/overhead"] == 2.0
    assert (found["pipeline/idle_learner"], found["pipeline/idle_rollout"]) == pytest.approx((0.4, 0.2))
    assert found["pipeline/overlap"] == pytest.approx(0.6)


def test_longer_trajectories_than_were_sampled_are_told() -> None:
    sampled = {"rollout/sampled_tokens": 100.0, "rollout/trajectories": 10.0}
    trained = {"update/sampled_tokens": 30.0, "update/trajectories": 2.0}
    assert lengths(sampled | trained) == {"pipeline/trained_over_admitted_tokens": 1.5}
    assert lengths(sampled) == {}


def test_episodes_of_a_found_round_took_no_time() -> None:
    ran = Artifact(path="a", digest="", metrics=of({"rollout/busy_seconds": 4.0, "time/rollout": 5.0}, "sum"))
    again = Artifact(path="b", digest="", metrics=of({"rollout/busy_seconds": 4.0, "time/rollout": 0.1}, "sum"))
    assert (seconds_of([], [ran, ran]), seconds_of([], [again])) == (8.0, 0.1)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the tables that Prefect was given."""
    given: list[str] = []

    async def shown(rows: object, key: str, description: str) -> None:
        given.append(key)

    monkeypatch.setattr(record_node, "acreate_table_artifact", shown)
    return given


RUN = Run(name="r", run_id="x", config_digest="d", seed=3, recipe="r", policy="w0", config={})
UPDATED = Artifact(path="runs/r/checkpoints/000003-e0001-abcdef", digest="w3")


def closed(made: Services, updated: Artifact | None = None, skipped: str = "", **metrics: float) -> Any:
    made.storage.write_json(SCOPE.run_layout.epoch(SCOPE.epoch), OURS.model_dump())
    played = asyncio.run(rollout.alone(made, SCOPE, prompts(made), 0))
    more = Artifact(path="", digest="", metrics=of({"reward/em": 0.5} | metrics, "mean")).timed("update", 1.0)
    artifacts = [played.timed("rollout", 1.0), more]
    return asyncio.run(record.alone(made, SCOPE, artifacts, 9, Timing(0.0, 0.0), [played], updated, skipped))


def test_the_record_names_cursor_and_checkpoint_and_is_then_delivered(tmp_path: Path, tables: list[str]) -> None:
    made = services(tmp_path)
    done = closed(made, UPDATED, **{"update/steps": 1.0, "update/compute_seconds": 0.5})
    assert (done.cursor, done.policy, done.skipped) == (9, Weights(updates=3, checkpoint=UPDATED.path, digest="w3"), "")
    assert read_record(made.storage, RUN, 4) == done
    assert made.delivery.woken == 1  # type: ignore[attr-defined]
    assert tables == ["run-r-iteration-5"]


def test_the_record_says_how_old_the_weights_were_that_sampled(tmp_path: Path, tables: list[str]) -> None:
    metrics = closed(services(tmp_path)).metrics
    assert (metrics["pipeline/staleness"], metrics["pipeline/staleness/0"]) == (0.0, 1.0)


def test_tokens_are_counted_by_the_age_of_the_weights_that_sampled_them() -> None:
    index = pa.table({"versions": [["3"], ["4"], ["1"], []], "sampled_tokens": [10, 20, 10, 0]})
    assert ages(index, 4) == pytest.approx(
        {"pipeline/staleness": 1.0, "pipeline/staleness/1": 0.25, "pipeline/staleness/0": 0.5, "pipeline/staleness/3": 0.25}
    )
    assert ages(index.slice(3), 4) == {}


def test_a_process_that_was_taken_over_records_nothing(tmp_path: Path, tables: list[str]) -> None:
    made = services(tmp_path)
    newer = OURS.model_copy(update={"name": "e0002-000000", "host": "elsewhere"})
    made.storage.write_json(SCOPE.run_layout.epoch(newer.name), newer.model_dump())
    with pytest.raises(TakenOverError, match=r"taken over by a process on elsewhere \(epoch e0002-000000\)"):
        closed(made)
    assert read_record(made.storage, RUN, 4) is None


def test_a_record_of_another_run_of_that_name_is_not_taken(tmp_path: Path, tables: list[str]) -> None:
    made = services(tmp_path)
    closed(made)
    with pytest.raises(BrokenInvariantError, match="is of another run that was named 'r' too"):
        read_record(made.storage, RUN.model_copy(update={"run_id": "y"}), 4)


@pytest.mark.parametrize("data", [b"", b'{"iteration": 4', b'{"iteration": 5, "sha256": "0"}'])
def test_a_damaged_record_is_one_sentence_that_says_how_to_go_on(tmp_path: Path, data: bytes) -> None:
    storage = services(tmp_path).storage
    storage.write_bytes(SCOPE.layout.record, data)
    with pytest.raises(DamagedError, match=r"record\.json is damaged: .* with `nbrl resume r --redo 5:record --root "):
        read_record(storage, RUN, 4)


@pytest.mark.parametrize("data", [None, b"", b'{"iteration": 5, "sha256": "0"}'])
def test_a_damaged_or_lost_record_is_brought_back_from_its_copy(tmp_path: Path, tables: list[str], data: bytes | None) -> None:
    made = services(tmp_path)
    done = closed(made)
    storage, record_key = made.storage, SCOPE.layout.record
    storage.delete(record_key) if data is None else storage.write_bytes(record_key, data)
    before = storage.list(RUN.layout.folder)
    put_aside(storage, CONFIG, Writer(RUN, SCOPE.epoch), 5, "record")
    assert read_record(storage, RUN, 4) == done
    assert set(storage.list(RUN.layout.folder)) == {*before, record_key}


def test_an_iteration_that_another_process_recorded_stops_this_one(tmp_path: Path, tables: list[str]) -> None:
    made = services(tmp_path)
    first = closed(made)
    with pytest.raises(InfraError, match="iteration 5 of run 'r' was recorded by another process"):
        closed(made)
    assert read_record(made.storage, RUN, 4) == first


def test_a_skipped_iteration_keeps_the_checkpoint(tmp_path: Path, tables: list[str]) -> None:
    done = closed(services(tmp_path), skipped="all wrong")
    assert (done.policy, done.metrics["select/no_signal"]) == (SCOPE.weights, 1.0)


def test_an_update_without_an_optimiser_step_has_a_checkpoint_and_taught_nothing(tmp_path: Path, tables: list[str]) -> None:
    done = closed(services(tmp_path), UPDATED, "no gradient", **{"update/steps": 0.0, "update/compute_seconds": 0.5})
    assert (done.updates, done.skipped) == (3, "no gradient")
