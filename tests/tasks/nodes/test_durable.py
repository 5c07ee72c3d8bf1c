"""What a node's result is found by, what a run is continued by, and when an iteration counts."""

import asyncio
import math
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from nbrl.infra.errors import DamagedError, InfraError, StorageError
from nbrl.infra.manifest import part_digest, write_manifest
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import BrokenInvariantError, ConfigError, NothingLearnedError, TakenOverError
from nbrl.tasks.metrics import Metric, of
from nbrl.tasks.nodes import durable as durable_module
from nbrl.tasks.nodes import record as record_node
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.nodes.record import Step, lengths, record, seconds_of, times
from nbrl.tasks.nodes.rollout import rollout
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.epochs import Epoch, take
from nbrl.tasks.runs.history import read_record
from nbrl.tasks.runs.lease import Writer
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.redo import put_aside
from nbrl.tasks.runs.results import inputs_of, key_of
from nbrl.tasks.runs.resume import resumed_config
from nbrl.tasks.runs.run import Run, drop_if_empty, find_run, open_run, opened
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.runs.summary import Summary, finished
from nbrl.tasks.services.progress import timed
from nbrl.tasks.services.reads import Reads
from nbrl.tasks.services.services import Services
from tests.tasks.nodes.doubles import SCOPE, DoubleProgress, prompts, services

SMALL = ["environments.world.train=8", "environments.world.held_out=4", "rollout.prompts=4"]


def key(node: str = "reward", scope: Scope = SCOPE, **inputs: object) -> str:
    return key_of(scope, node, inputs_of(scope, tuple(inputs.values())))


def test_a_result_is_found_again_by_the_same_inputs_alone() -> None:
    artifact = Artifact(path="a", digest="1")
    base = key(given=artifact, round_=0)
    assert key(given=Artifact(path="elsewhere", digest="1").timed("sample", 1.0), round_=0) == base
    assert key(scope=SCOPE.model_copy(update={"epoch": "e0009-abcdef"}), given=artifact, round_=0) == base
    changes: list[dict[str, object]] = [{"run_id": "y"}, {"iteration": 5}, {"weights": Weights(digest="other")}]
    others = [
        key("select", given=artifact, round_=0),
        key(given=Artifact(path="a", digest="2"), round_=0),
        key(given=artifact, round_=1),
        key(given=[artifact, artifact], round_=0),
        key(given=[[artifact], artifact], round_=0),
        *(key(scope=SCOPE.model_copy(update=change), given=artifact, round_=0) for change in changes),
    ]
    assert len({base, *others}) == len(others) + 1


def test_a_run_is_opened_with_its_data_and_found_again(tmp_path: Path) -> None:
    storage = services(tmp_path).storage
    config = load("tiny-cpu", SMALL)
    run = open_run(config, "a", storage)[0]
    assert open_run(config, "a", storage)[0] == run == find_run(storage, "a")
    assert storage.read_table("runs/a/data/train.parquet").num_rows == 8
    drop_if_empty(run, storage)
    assert storage.list("runs") == []
    assert open_run(config, "a", storage)[0].run_id != run.run_id  # a new run of the old name shares no result with it


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("update.lr=0.5", "update.lr is 0.5, the run began with 0.0"),
        ("seed=9", "seed is 9, the run began with 0"),
        ("rollout.prompts=2", "rollout.prompts is 2, the run began with 4"),
        ("advantage.gamma=0.5", "advantage.gamma is 0.5, the run began with 0.95"),
        ("update.loss.kind=ppo", 'update.loss.kind is "ppo", the run began with "policy_gradient"'),
    ],
)
def test_a_run_is_not_continued_with_a_setting_that_decides_results(tmp_path: Path, change: str, words: str) -> None:
    storage, small = services(tmp_path).storage, SMALL
    open_run(load("tiny-cpu", small), "a", storage)[0]
    with pytest.raises(ConfigError, match=f"exists with another configuration: {re.escape(words)}"):
        open_run(load("tiny-cpu", [*small, change]), "a", storage)


@pytest.mark.parametrize(
    "change",
    [
        "iterations=99",
        "select.patience=9",
        "update.workers=1",
        "home=/elsewhere",
        "record.traces=0",
        "engine.port=4000",
        "rollout.runners=2",
        "sandbox.start_timeout_s=9",
        "engine.request_timeout_s=9",
        "name=b",
        "evaluate.every=1",
    ],
)
def test_a_run_is_continued_with_a_setting_that_decides_none(tmp_path: Path, change: str) -> None:
    storage, small = services(tmp_path).storage, SMALL
    run = open_run(load("tiny-cpu", small), "a", storage)[0]
    assert open_run(load("tiny-cpu", [*small, change]), "a", storage)[0] == run


def test_a_run_is_continued_with_its_model_at_another_place_and_not_with_another_model(tmp_path: Path) -> None:
    storage, small = services(tmp_path).storage, SMALL
    config = load("tiny-cpu", small)
    run = open_run(config, "a", storage)[0]
    copy = shutil.copytree(config.policy.path, tmp_path / "copy")
    moved = load("tiny-cpu", [*small, f"policy.path={copy}"])
    assert open_run(moved, "a", storage)[0] == run
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(ConfigError, match="holds another model than it began with"):
        open_run(moved, "a", storage)


def test_a_run_of_a_release_that_knew_fewer_keys_goes_on(tmp_path: Path) -> None:
    storage, small = services(tmp_path).storage, SMALL
    run = open_run(load("tiny-cpu", small), "a", storage)[0]
    run = run.model_copy(update={"config": None})  # as it was written then
    storage.write_json(run.layout.identity, run.model_dump(mode="json", exclude={"config"}))
    settings = yaml.safe_load(storage.read_bytes(run.layout.config))
    del settings["advantage"]["gamma"], settings["publish"]
    storage.write_bytes(run.layout.config, yaml.safe_dump(settings).encode())
    assert open_run(load("tiny-cpu", small), "a", storage)[0] == run
    settings["advantage"]["unheard_of"] = 1
    storage.write_bytes(run.layout.config, yaml.safe_dump(settings).encode())
    with pytest.raises(ConfigError, match=r"no configuration of this release: advantage\.unheard_of"):
        open_run(load("tiny-cpu", small), "a", storage)


def test_a_run_goes_on_from_its_storage_alone(tmp_path: Path) -> None:
    storage, small = services(tmp_path).storage, [*SMALL, "update.lr=0.5"]
    began = load("tiny-cpu", small)
    run = open_run(began, "a", storage)[0]
    config = resumed_config(storage, "a", ["iterations=77"])
    assert (config.iterations, config.update, config.storage.root) == (77, began.update, storage.settings.root)
    assert open_run(config, "a", storage)[0] == run
    take(storage, run.layout, config.model_dump(mode="json"))
    assert resumed_config(storage, "a", []).iterations == 77  # as it was started last
    with pytest.raises(ConfigError, match=r"there is no run 'b' in .*; there are: a"):
        resumed_config(storage, "b", [])


def test_of_two_processes_that_open_a_new_run_one_creates_it_and_the_other_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, small = services(tmp_path).storage, SMALL
    homes = [load("tiny-cpu", [*small, f"home={tmp_path}/{name}"]) for name in ("one", "other")]

    def stopped(config: RunConfig, name: str) -> None:
        with opened(Prepared(config=config), name, storage):
            raise KeyboardInterrupt

    with opened(Prepared(config=homes[0]), "a", storage) as run:
        with pytest.raises(KeyboardInterrupt):
            stopped(homes[1], "a")
        assert find_run(storage, "a") == run
    with pytest.raises(KeyboardInterrupt):
        stopped(homes[0], "b")
    assert find_run(storage, "b") is None  # its own, and empty
    monkeypatch.setattr(stored, "write", Mock(side_effect=StorageError("the disk is full")))
    with pytest.raises(StorageError):
        stopped(homes[0], "c")
    assert find_run(storage, "c") is None


def test_a_new_run_takes_nothing_over_from_one_of_its_name_that_was_dropped_in_part(tmp_path: Path) -> None:
    storage, small = services(tmp_path).storage, SMALL
    first = open_run(load("tiny-cpu", small), "a", storage)[0]
    before = storage.read_bytes(first.layout.data.split("train"))
    storage.delete(first.layout.identity)  # and then its process was killed
    run, created = open_run(load("tiny-cpu", [*small, "environments.world.seed=1"]), "a", storage)
    assert created
    assert storage.read_bytes(run.layout.data.split("train")) != before
    assert yaml.safe_load(storage.read_bytes(run.layout.config))["environments"]["world"]["seed"] == 1


def test_a_result_whose_checkpoint_is_gone_is_made_again(tmp_path: Path) -> None:
    made, calls = services(tmp_path), []

    def update(services: Services, scope: Scope, table: Artifact) -> Artifact:
        calls.append(scope)
        folder = services.storage.local_path(scope.next_checkpoint)
        assert folder
        (folder / "hf").mkdir(parents=True, exist_ok=True)
        (folder / "hf/weights").write_bytes(b"weights")
        write_manifest(folder)
        return Artifact(
            path=scope.next_checkpoint, digest=part_digest(services.storage.read_manifest(scope.next_checkpoint), "hf/")
        )

    asked = Artifact(path="t", digest="1")

    def carried_out() -> Artifact:
        made.reads = Reads(made.storage)
        return asyncio.run(run_durable(made, asked))

    async def run_durable(made: Services, asked: Artifact) -> Any:
        inputs = inputs_of(SCOPE, (asked,))
        found = durable_module._found(made, SCOPE, "update", inputs)
        return found or durable_module._kept(made, SCOPE, "update", inputs, update(made, SCOPE, asked))

    first = carried_out()
    assert carried_out() == first
    assert len(calls) == 1
    folder = made.storage.local_path(first.path)
    assert folder
    (folder / "manifest.json").unlink()
    assert carried_out() == first
    shutil.rmtree(folder)
    assert carried_out() == first
    assert len(calls) == 3


def test_a_result_of_another_process_counts_only_while_what_it_names_is_there(tmp_path: Path) -> None:
    made, inputs = services(tmp_path), ["a"]
    theirs = Artifact(path="runs/r/theirs.parquet", digest=made.storage.write_bytes("runs/r/theirs.parquet", b"theirs"))
    mine = Artifact(path="runs/r/mine.parquet", digest=made.storage.write_bytes("runs/r/mine.parquet", b"mine"))
    made.storage.write_json(SCOPE.run_layout.epoch(SCOPE.epoch), OURS.model_dump())
    assert durable_module._kept(made, SCOPE, "sample", inputs, theirs) == theirs
    assert durable_module._kept(made, SCOPE, "sample", inputs, mine) == theirs
    made.storage.delete(theirs.path)
    assert durable_module._kept(made, SCOPE, "sample", inputs, mine) == mine
    assert durable_module._kept(made, SCOPE, "sample", inputs, theirs) == mine


def test_what_describes_no_run_is_not_overwritten(tmp_path: Path) -> None:
    storage = services(tmp_path).storage
    storage.write_bytes("runs/a/run.json", b"")
    with pytest.raises(ConfigError, match="is not what was written there"):
        open_run(load("tiny-cpu"), "a", storage)[0]


def test_an_artifact_in_json_is_the_same_with_the_reduction_of_its_metrics() -> None:
    artifact = Artifact(path="p", digest="d", metrics={"a": Metric(1.0, "sum"), "b": Metric(math.inf, "max")})
    assert Artifact.model_validate_json(artifact.model_dump_json()) == artifact
    bare = Artifact.model_validate({"path": "p", "digest": "d", "metrics": {"a": 1.0}})
    assert bare.metrics == {"a": Metric(1.0, "mean")}


def test_overhead_is_what_neither_engines_kernels_nor_the_update_took() -> None:
    # An update that was found took 3 s, whatever it took once.
    found = {"update/compute_seconds": 9.0, "time/update": 3.0}
    assert times(found, Step(0.0, alone_s=4.0), 10.0)["time/overhead"] == 3.0
    assert times({}, Step(0.0, alone_s=4.0), 10.0)["time/overhead_share"] == pytest.approx(0.6)


def test_what_runs_beside_the_update_is_no_overhead_and_leaves_nobody_idle() -> None:
    update = {"update/compute_seconds": 6.0, "time/update": 7.0}
    found = times(update, Step(0.0, alone_s=0.0, beside_s=8.0), 10.0)
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
    assert (seconds_of([ran, ran]), seconds_of([again])) == (8.0, 0.1)


def test_a_node_that_awaits_nothing_runs_in_a_thread(tmp_path: Path) -> None:
    @durable
    def nothing(services: Services, scope: Scope) -> Artifact:
        services.progress.say(threading.current_thread().name)
        return Artifact(path="p", digest="d")

    made = services(tmp_path)
    assert asyncio.run(nothing.alone(made, SCOPE)) == Artifact(path="p", digest="d")
    assert made.progress.heard != [("say", threading.main_thread().name)]  # type: ignore[attr-defined]


def test_work_is_timed_and_its_end_is_heard_of_whether_it_went_well_or_not() -> None:
    progress = DoubleProgress()

    async def work(error: Exception | None) -> int:
        if error:
            raise error
        await asyncio.sleep(0.05)
        return 7

    result, seconds = asyncio.run(timed(progress, "rollout", work(None)))
    assert (result, seconds >= 0.05) == (7, True)
    with pytest.raises(KeyError):
        asyncio.run(timed(progress, "update", work(KeyError("x"))))
    assert progress.heard == [("started", "rollout"), ("ended", "rollout"), ("started", "update"), ("ended", "update")]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the tables that Prefect was given."""
    given: list[str] = []

    async def shown(rows: object, key: str, description: str) -> None:
        given.append(key)

    monkeypatch.setattr(record_node, "acreate_table_artifact", shown)
    return given


OURS = Epoch(name=SCOPE.epoch, host="here", process="here/1/2", started=0.0, version="1")
RUN = Run(name="r", run_id="x", config_digest="d", seed=3, recipe="r")
UPDATED = Artifact(path="runs/r/checkpoints/000003-e0001-abcdef", digest="w3")


def closed(made: Services, updated: Artifact | None = None, skipped: str = "", **metrics: float) -> Any:
    made.storage.write_json(SCOPE.run_layout.epoch(SCOPE.epoch), OURS.model_dump())
    played = asyncio.run(rollout.alone(made, SCOPE, prompts(made), 0))
    more = Artifact(path="", digest="", metrics=of({"reward/em": 0.5} | metrics, "mean")).timed("update", 1.0)
    return asyncio.run(record.alone(made, SCOPE, [played.timed("rollout", 1.0), more], 9, Step(0.0, 0.0), updated, skipped))


def test_the_record_names_cursor_and_checkpoint_and_is_then_delivered(tmp_path: Path, tables: list[str]) -> None:
    made = services(tmp_path)
    done = closed(made, UPDATED, **{"update/steps": 1.0, "update/compute_seconds": 0.5})
    assert (done.cursor, done.policy, done.skipped) == (9, Weights(updates=3, checkpoint=UPDATED.path, digest="w3"), "")
    assert read_record(made.storage, RUN, 4) == done
    assert made.delivery.woken == 1  # type: ignore[attr-defined]
    assert tables == ["run-r-iteration-5"]


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
    with pytest.raises(DamagedError, match=r"record\.json is damaged: .* with `nbrl resume r --redo 5:record`"):
        read_record(storage, RUN, 4)


@pytest.mark.parametrize("data", [None, b"", b'{"iteration": 5, "sha256": "0"}'])
def test_a_damaged_or_lost_record_is_brought_back_from_its_copy(tmp_path: Path, tables: list[str], data: bytes | None) -> None:
    made = services(tmp_path)
    done = closed(made)
    storage, record_key = made.storage, SCOPE.layout.record
    storage.delete(record_key) if data is None else storage.write_bytes(record_key, data)
    before = storage.list(RUN.layout.folder)
    put_aside(storage, Writer(RUN, SCOPE.epoch), 5, "record")
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


def summary(**fields: object) -> Summary:
    plain: dict[str, Any] = {"run": "a", "before": {}, "after": {}, "iterations": 2, "trajectories": 0, "sampled_tokens": 0}
    plain |= {"mismatch_max": 0.0, "overhead_share": 0.0, "seconds": {}, "curve": [], "curve_path": "", "example": ""}
    return Summary.model_validate(plain | fields)


def test_a_finished_run_is_told_by_its_summary(tmp_path: Path) -> None:
    made = services(tmp_path)
    config = load("tiny-cpu", [*SMALL, "iterations=2", "select.patience=2"])
    run = open_run(config, "a", made.storage)[0]

    def outcome(fields: dict[str, object], **settings: int) -> Summary | None:
        made.storage.write_bytes("runs/a/summary.json", summary(**fields).model_dump_json().encode())
        return finished(run, config.model_copy(update=settings), made.storage)

    assert finished(run, config, made.storage) is None
    assert outcome({}) is not None
    assert outcome({}, iterations=5) is None
    assert outcome({"stalled": "why", "skipped_in_row": 2, "iterations": 4}, iterations=9) is not None  # it ended early
    with pytest.raises(NothingLearnedError, match="run 'a' learned nothing\nwhy"):
        outcome({"stalled": "why", "skipped_in_row": 2})
