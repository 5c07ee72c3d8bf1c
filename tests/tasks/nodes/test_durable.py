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

from nbrl.infra.errors import InfraError, StorageError
from nbrl.infra.manifest import part_digest, write_manifest
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import ConfigError, NothingLearnedError, OtherFormatError
from nbrl.tasks.metrics import Metric
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.ending import Ending
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.history import Summary, finished
from nbrl.tasks.runs.lease import last_ending
from nbrl.tasks.runs.opening import continued, drop, open_run, opened
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import load, resumed_config
from nbrl.tasks.runs.results import inputs_of, key_of, node_steps, result_of
from nbrl.tasks.runs.run import Run, find_run, known_run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.runs.writer import writing
from nbrl.tasks.services.progress import timed
from nbrl.tasks.services.services import Reads, Services
from tests.tasks.nodes.doubles import OURS, SCOPE, DoubleProgress, services

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
    assert drop(run, storage, [])
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
        "sandbox.warm=1",
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


@pytest.mark.parametrize(("found", "words"), [(None, "names no format"), (1, "is of format 1"), (10**30, "is of format 1000")])
def test_a_run_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path, found: int | None, words: str) -> None:
    storage, config = services(tmp_path).storage, load("tiny-cpu", SMALL)
    run = open_run(config, "a", storage)[0]
    assert storage.read_json(run.layout.identity)["format"] == 2
    fields = {key: value for key, value in run.model_dump(mode="json").items() if key != "format"}
    storage.write_json(run.layout.identity, fields if found is None else fields | {"format": found})
    before = {key: storage.read_bytes(key) for key in storage.list("runs")}
    refused = rf"run 'a' {words}.*, and this version of nbrl reads format 2; use the version that made it"
    for read in (
        lambda: find_run(storage, "a"),
        lambda: open_run(config, "a", storage),
        lambda: resumed_config(storage, "a", []),
    ):
        with pytest.raises(OtherFormatError, match=refused):
            read()
    assert {key: storage.read_bytes(key) for key in storage.list("runs")} == before


def test_settings_that_a_run_cannot_have_begun_with_are_refused(tmp_path: Path) -> None:
    storage, config = services(tmp_path).storage, load("tiny-cpu", SMALL)
    run = open_run(config, "a", storage)[0]
    settings = run.config | {"advantage": run.config["advantage"] | {"unheard_of": 1}}
    storage.write_json(run.layout.identity, run.model_copy(update={"config": settings}).model_dump(mode="json"))
    with pytest.raises(ConfigError, match=r"no configuration of this version: advantage\.unheard_of"):
        open_run(config, "a", storage)


def test_a_run_goes_on_from_its_storage_alone(tmp_path: Path) -> None:
    storage, small = services(tmp_path).storage, [*SMALL, "update.lr=0.5"]
    began = load("tiny-cpu", small)
    run = open_run(began, "a", storage)[0]
    config = resumed_config(storage, "a", ["iterations=77"])
    assert resumed_config(storage, "a", ["home=/new"]).storage == storage.settings  # the run is there, wherever the home is
    assert (config.iterations, config.update, config.storage.root) == (77, began.update, storage.settings.root)
    assert open_run(config, "a", storage)[0] == run
    take(storage, run.layout, config.model_dump(mode="json"))
    assert resumed_config(storage, "a", []).iterations == 77  # as it was started last
    with pytest.raises(ConfigError, match=r"there is no run 'b' in .*; there are: a"):
        resumed_config(storage, "b", [])
    with pytest.raises(ConfigError, match=r"storage\.root is .*elsewhere but run 'a' is in .*; leave it out, or copy"):
        resumed_config(storage, "a", ["storage.root=elsewhere"])


def test_a_start_that_failed_before_it_made_anything_leaves_a_run_that_other_settings_replace(tmp_path: Path) -> None:
    storage, config = services(tmp_path).storage, load("tiny-cpu", SMALL)
    other = load("tiny-cpu", [*SMALL, "update.lr=0.5"])

    def failed(name: str) -> Run:
        async def begin() -> None:
            with opened(Prepared(config=config), name, storage) as run:
                async with writing(run, storage, take_over=False, say=print):
                    if not name.startswith("failed"):
                        storage.write_json(f"{run.layout.iterations}/000000/nodes/sample.json", {})
                    raise StorageError("no Ray")

        with pytest.raises(StorageError):
            asyncio.run(begin())
        return known_run(storage, name)

    run = failed("failed")
    assert last_ending(storage, run.layout)[0] == Ending("FAILED", "no Ray")
    assert continued(storage, "failed", config) == run
    assert continued(storage, "failed", other) is None
    replaced, created = open_run(other, "failed", storage)
    assert created
    assert (replaced.run_id == run.run_id, storage.list(run.layout.epochs), storage.list(run.layout.logs)) == (False, [], [])
    assert known_run(storage, "failed") == replaced
    begun = failed("begun")
    for name in ("begun", "failed"):  # the second has no start yet, and may be that of another process
        with pytest.raises(ConfigError, match="exists with another configuration"):
            open_run(config if name == "failed" else other, name, storage)
    assert known_run(storage, "begun") == begun


def test_a_process_whose_run_was_replaced_meanwhile_does_not_begin(tmp_path: Path) -> None:
    storage, config = services(tmp_path).storage, load("tiny-cpu", SMALL)
    run, _ = open_run(config, "a", storage)
    storage.write_json(run.layout.identity, run.model_copy(update={"run_id": "another"}).model_dump(mode="json"))

    async def begin() -> None:
        async with writing(run, storage, take_over=False, say=print):
            pass

    with pytest.raises(InfraError, match="was removed by another process while it was opened"):
        asyncio.run(begin())


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
        steps, key = node_steps(made.storage, SCOPE, made.cache, print), key_of(SCOPE, "update", inputs)
        found = steps.find(key, "update")
        return (found or steps.keep(key, result_of(SCOPE, "update", inputs, update(made, SCOPE, asked)))).artifact

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
    steps, key = node_steps(made.storage, SCOPE, made.cache, print), key_of(SCOPE, "sample", inputs)

    def kept(artifact: Artifact) -> Artifact:
        return steps.keep(key, result_of(SCOPE, "sample", inputs, artifact)).artifact

    assert kept(theirs) == kept(mine) == theirs
    made.storage.delete(theirs.path)
    assert kept(mine) == kept(theirs) == mine


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
