"""Which checkpoints stay, and what nobody names any more."""

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.errors import DamagedError
from nbrl.infra.manifest import MANIFEST, manifest_bytes
from nbrl.infra.process.identity import identity
from nbrl.infra.storage import Storage
from nbrl.tasks.audit.chain import leftovers
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import RESULT, STATES, TOKEN_LOGPROBS
from nbrl.tasks.metrics import of
from nbrl.tasks.runs.checkpoints import checkpoint, checkpoint_folder
from nbrl.tasks.runs.config import CheckpointSettings
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.orders import can_train_on, has_state
from nbrl.tasks.runs.pins import Pin, pin, pinned
from nbrl.tasks.runs.redo import drop_obsolete_evaluations, put_aside
from nbrl.tasks.runs.results import evaluated_updates, merge, results_of, scores_of, unmerge
from nbrl.tasks.runs.retention import complete, kept, prune
from nbrl.tasks.runs.scope import Artifact, Weights
from nbrl.tasks.runs.sweep import sweep, sweep_stage
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.services.start import _check_checkpoint
from tests.clouds import FolderCloud
from tests.tasks import checkpoint_lab
from tests.tasks.checkpoint_lab import CONFIG, RUN, made, new_storage, numbers
from tests.tasks.storing import keep


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return new_storage(tmp_path)


def test_the_last_the_best_and_every_tenth_stay_and_only_the_last_can_be_trained_on() -> None:
    settings = CheckpointSettings(keep_last=2, keep_every=10, keep_best=1)
    scores = {4: 0.5, 7: 0.9, 8: 0.9, 12: 0.1}
    assert kept(range(1, 26), scores, settings) == ({8, 10, 20, 24, 25}, {24, 25})
    assert kept(range(1, 26), scores, settings.model_copy(update={"state": "all"}))[1] == {8, 10, 20, 24, 25}
    assert kept(range(1, 5), {}, CheckpointSettings(keep_last=None)) == ({1, 2, 3, 4}, {1, 2, 3, 4})


@given(
    st.sets(st.integers(1, 200), min_size=1),
    st.dictionaries(st.integers(1, 200), st.floats(0, 1)),
    st.builds(CheckpointSettings, keep_last=st.integers(1, 5), keep_every=st.integers(0, 20), keep_best=st.integers(0, 3)),
)
def test_the_newest_always_stays_with_its_state(made: set[int], scores: dict[int, float], settings: CheckpointSettings) -> None:
    stay, trainable = kept(sorted(made), scores, settings)
    assert max(made) in trainable <= stay <= made


def test_what_need_not_stay_is_deleted_but_for_its_result(storage: Storage, tmp_path: Path) -> None:
    _, records = made(storage, tmp_path, 4)
    prune(storage, RUN, records, {1: 0.9}, CheckpointSettings(keep_last=2))
    assert numbers(storage, "hf/") == [1, 3, 4]
    assert numbers(storage, "state/") == numbers(storage, "critic/") == [3, 4]
    assert numbers(storage, RESULT) == [1, 2, 3, 4]
    assert numbers(storage, TOKEN_LOGPROBS) == numbers(storage, "hf/model.safetensors")
    assert [can_train_on(storage, CONFIG, RUN, record.policy) for record in records] == [True, False, True, True]
    prune(storage, RUN, records, {1: 0.9}, CheckpointSettings(keep_last=2))  # again, as after a kill
    assert numbers(storage, "hf/") == [1, 3, 4]
    assert checkpoint(storage, "r", None) == records[-1].checkpoint
    assert checkpoint(storage, "r", 1) == records[0].checkpoint
    with pytest.raises(ConfigError, match=r"checkpoint 2 of run 'r' is gone .*; there are: 1, 3, 4; name one"):
        checkpoint(storage, "r", 2)


@pytest.mark.parametrize("name", ["hf", "nodes", "state", "checkpoints"])
def test_a_run_may_be_named_as_parts_of_keys_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    run = RUN.model_copy(update={"name": name})
    monkeypatch.setattr(checkpoint_lab, "RUN", run)
    storage = new_storage(tmp_path)
    writer, records = made(storage, tmp_path, 3)
    writer = Writer(run, writer.epoch)
    keep(storage, writer.evaluation(records[-1].policy), "evaluate", ["w3"], Artifact(path="", digest="", metrics={}))
    prune(storage, run, records, {}, CheckpointSettings(keep_last=1))
    assert complete(storage, run) == {records[-1].checkpoint}
    sweep(storage, writer)
    assert evaluated_updates(storage, run) == [3]
    put_aside(storage, CONFIG, writer, 3, "record")
    with pytest.raises(ConfigError, match="the checkpoint after 2 updates, which it starts from, was deleted"):
        put_aside(storage, CONFIG, writer, 3, "update")


@pytest.mark.parametrize(("asked", "number", "left"), [(2, 2, "1, 3"), (None, 3, "1, 2"), (3, 3, "1, 2")])
def test_whichever_checkpoint_was_deleted_by_hand_one_sentence_says_which_are_left(
    storage: Storage, tmp_path: Path, asked: int | None, number: int, left: str
) -> None:
    _, records = made(storage, tmp_path, 3)
    storage.delete(records[number - 1].checkpoint)
    words = rf"^checkpoint {number} of run 'r' is gone \(deleted by its setting `checkpoints`, or by hand\); there are: {left}; "
    with pytest.raises(ConfigError, match=words + "name one of them, or bring it back from a copy$"):
        checkpoint(storage, "r", asked)


def _without_state(storage: Storage, checkpoint: str) -> None:
    """As one between two with states, or a newest one whose state is still written."""
    names = {name: digest for name, digest in storage.read_manifest(checkpoint).items() if not name.startswith(STATES)}
    storage.write_bytes(f"{checkpoint}/{MANIFEST}", manifest_bytes(names))


@pytest.mark.parametrize(("without", "stay"), [((4,), [3, 4]), ((3, 4), [2, 4]), ((2, 3), [4])])
@pytest.mark.parametrize("listed", [True, False], ids=["its files there", "no files"])
@pytest.mark.parametrize("name", ["r", "state"])
def test_the_state_from_which_the_newest_is_made_again_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: tuple[int, ...], stay: list[int], listed: bool, name: str
) -> None:
    run = RUN.model_copy(update={"name": name})
    monkeypatch.setattr(checkpoint_lab, "RUN", run)
    storage = new_storage(tmp_path)
    _, records = made(storage, tmp_path, 4)
    for number in without:
        _without_state(storage, records[number - 1].checkpoint)
        if not listed:  # a kill may come between the files of a state and the manifest
            storage.delete(f"{records[number - 1].checkpoint}/state")
            storage.delete(f"{records[number - 1].checkpoint}/critic")
    prune(storage, run, records, {}, CheckpointSettings(keep_last=1, state_every=3))
    assert numbers(storage, "hf/") == stay
    assert [has_state(storage, records[number - 1].checkpoint) for number in stay] == [number not in without for number in stay]


def test_weights_without_their_manifest_are_refused_with_what_to_do(storage: Storage, tmp_path: Path) -> None:
    _, records = made(storage, tmp_path, 1)
    storage.delete(f"{records[0].checkpoint}/{MANIFEST}")
    with (
        pytest.raises(DamagedError, match=r"has lost its manifest\.json: .*; bring the folder back from a copy, or name another"),
        checkpoint_folder(storage, tmp_path, "r", 1),
    ):
        pass


def test_a_checkpoint_that_lost_its_manifest_stops_no_run_and_is_not_continued_from(storage: Storage, tmp_path: Path) -> None:
    _, records = made(storage, tmp_path, 2)
    for record in records:
        storage.delete(f"{record.checkpoint}/{MANIFEST}")
    prune(storage, RUN, records, {1: 0.9}, CheckpointSettings(keep_last=1))
    with pytest.raises(DamagedError, match=r"has lost its manifest\.json; `nbrl resume r --redo 2:update --root .*` makes"):
        _check_checkpoint(storage, RUN, records[1].policy)


def test_a_checkpoint_on_a_cloud_that_lost_an_object_stops_the_start(storage: Storage, tmp_path: Path) -> None:
    _, records = made(storage, tmp_path, 1)
    cloud = FolderCloud(storage.settings)
    _check_checkpoint(cloud, RUN, records[0].policy)
    name = next(name for name in cloud.read_manifest(records[0].checkpoint) if name.startswith("state/"))
    cloud.delete(f"{records[0].checkpoint}/{name}")
    with pytest.raises(DamagedError, match=r"state/.* is gone; `nbrl resume r --redo 1:update --root .*` makes the checkpoint"):
        _check_checkpoint(cloud, RUN, records[0].policy)


def test_scores_are_those_of_all_evaluations_whoever_made_them(storage: Storage) -> None:
    for updates in (0, 3):
        scope = Writer(RUN, "e0001-abcdef").evaluation(Weights(updates=updates, digest=f"w{updates}"))
        keep(storage, scope, "evaluate", ["w"], Artifact(path="", digest="", metrics=of({"success": updates / 4}, "last")))
    assert scores_of(storage, RUN) == {0: 0.0, 3: 0.75}


def test_a_checkpoint_that_somebody_uses_stays_until_they_ended(storage: Storage, tmp_path: Path) -> None:
    _, records = made(storage, tmp_path, 3)
    dead = Pin(updates=2, process=f"{identity().rsplit('/', 2)[0]}/4194305/1", placed=time.time())
    storage.create_json(f"{RUN.layout.pins}/dead.json", dead.model_dump())
    with pin(storage, RUN, 1):
        prune(storage, RUN, records, {}, CheckpointSettings(keep_last=1))
        assert numbers(storage, "hf/") == [1, 3]
    assert storage.list(RUN.layout.pins) == []
    prune(storage, RUN, records, {}, CheckpointSettings(keep_last=1))
    assert numbers(storage, "hf/") == [3]


def test_a_pin_of_another_machine_counts_for_a_day(storage: Storage) -> None:
    for name, age in (("new", 60.0), ("old", 90000.0)):
        mark = Pin(updates=1 if name == "new" else 2, process="elsewhere/b/p/1/1", placed=time.time() - age)
        storage.create_json(f"{RUN.layout.pins}/{name}.json", mark.model_dump())
    assert pinned(storage, RUN) == {1}


@pytest.mark.parametrize("own", [True, False], ids=["by the process itself", "by the next one"])
def test_a_state_that_came_to_a_checkpoint_after_its_deletion_is_swept_away(storage: Storage, tmp_path: Path, own: bool) -> None:
    writer, records = made(storage, tmp_path, 3)
    prune(storage, RUN, records, {}, CheckpointSettings(keep_last=1, keep_best=0))
    storage.write_bytes(f"{records[0].checkpoint}/state/model.safetensors", b"late")
    storage.write_bytes(f"{records[0].checkpoint}/{MANIFEST}", manifest_bytes({"hf/model.safetensors": "x"}))
    sweep(storage, writer if own else Writer(RUN, take(storage, RUN.layout).name), own=own)
    assert [key for key in storage.list(records[0].checkpoint) if not key.endswith(RESULT)] == []
    assert complete(storage, RUN) == {records[2].checkpoint}


def test_what_nothing_names_is_swept_away_and_what_is_in_progress_stays(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 2)
    sweep(storage, writer)
    before = storage.list(RUN.layout.folder)
    later = Writer(RUN, take(storage, RUN.layout).name)
    lost = [
        later.iteration(0, Weights()).layout.advantages,
        f"{later.iteration(1, Weights()).layout.round(0).all_chunks}/chunk.parquet",
        f"{RUN.layout.checkpoint(2, later.epoch)}/hf/model.safetensors",
        f"{RUN.layout.checkpoint(3, later.epoch)}.partial/hf/model.safetensors",
    ]
    progress = later.iteration(2, records[-1].policy)
    going = [progress.layout.advantages, f"{progress.layout.round(0).all_chunks}/chunk.parquet"]
    for key in [*lost, *going]:
        storage.write_bytes(key, b"x")
    sweep(storage, later)
    left = storage.list(RUN.layout.folder)
    assert set(left) == {*before, *going, RUN.layout.epoch(later.epoch)}
    assert writer.epoch != later.epoch


@pytest.mark.parametrize("cut", ["state/", "critic/", "hf/"])
def test_a_deletion_that_was_cut_off_is_done_again(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    _, records = made(storage, tmp_path, 3)
    delete, delete_keys = Storage.delete, Storage.delete_keys

    def killed(self: Storage, key: str) -> None:
        if key.endswith(cut.rstrip("/")):
            raise KeyboardInterrupt
        delete(self, key)

    def killed_keys(self: Storage, keys: Iterable[str]) -> None:
        all_keys = list(keys)
        if any(f"/{cut}" in key for key in all_keys):
            raise KeyboardInterrupt
        delete_keys(self, all_keys)

    monkeypatch.setattr(Storage, "delete", killed)
    monkeypatch.setattr(Storage, "delete_keys", killed_keys)
    settings = CheckpointSettings(keep_last=1, keep_every=2)
    with pytest.raises(KeyboardInterrupt):
        prune(storage, RUN, records, {}, settings)
    monkeypatch.undo()
    prune(storage, RUN, records, {}, settings)
    assert (numbers(storage, "hf/"), numbers(storage, "state/"), numbers(storage, "critic/")) == ([2, 3], [3], [3])


def test_who_was_taken_over_after_its_record_deletes_nothing_of_who_took_over(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 1)
    later = Writer(RUN, take(storage, RUN.layout).name).iteration(0, Weights(digest="w0"))
    storage.write_bytes(later.layout.advantages, b"of the newer epoch")
    sweep_stage(storage, writer.iteration(0, Weights(digest="w0")).layout, records[0].artifacts)
    assert storage.exists(later.layout.advantages)
    sweep_stage(storage, later.layout, records[0].artifacts)
    assert not storage.exists(later.layout.advantages)


def test_the_trajectories_of_an_evaluation_to_come_are_neither_swept_nor_left_over(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 1)
    first = writer.evaluation(Weights(updates=1, digest="w1"))
    table = Artifact(path=first.layout.round(0).rewards, digest=storage.write_bytes(first.layout.round(0).rewards, b"x"))
    kept_chunk = f"{writer.evaluation(Weights()).layout.round(0).chunks('w0')}/a.parquet"
    storage.write_bytes(kept_chunk, b"x")  # of an evaluation without any result
    keep(storage, first, "evaluate", ["w1"], table)
    later = Writer(RUN, take(storage, RUN.layout).name)
    scope = later.evaluation(Weights(updates=1, digest="w1-again"))
    going = [f"{scope.layout.round(0).chunks('w1-again')}/a.parquet", kept_chunk]
    lost = f"{scope.layout.round(0).chunks('w1')}/a.parquet"
    for key in [*going, lost]:
        storage.write_bytes(key, b"x")
    results = results_of(storage, first.layout)
    assert list(leftovers(storage, RUN.layout, records, results)) == [f"{lost} is left over: nothing names it"]
    sweep(storage, later)
    assert [storage.exists(key) for key in (*going, lost)] == [True, True, False]
    assert list(leftovers(storage, RUN.layout, records, results)) == []


def test_evaluations_of_policies_that_were_made_again_go_at_the_end(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 2)
    for updates, digest in ((0, "w0"), (1, "w1"), (2, "another")):
        scope = writer.evaluation(Weights(updates=updates, digest=digest))
        table = Artifact(path=scope.layout.round(0).rewards, digest=storage.write_bytes(scope.layout.round(0).rewards, b"x"))
        keep(storage, scope, "evaluate", [digest], table)
    drop_obsolete_evaluations(storage, writer, records)
    assert evaluated_updates(storage, RUN) == [0, 1, 2]  # nothing was done again
    storage.write_json(RUN.layout.redo, {"request": "2:"})
    drop_obsolete_evaluations(storage, writer, records)
    assert evaluated_updates(storage, RUN) == [0, 1]
    assert len([key for key in storage.list(RUN.layout.evaluations) if key.endswith("rewards.parquet")]) == 2


def test_what_was_done_again_goes_when_its_iteration_is_recorded(storage: Storage, tmp_path: Path) -> None:
    _, records = made(storage, tmp_path, 2)
    later = Writer(RUN, take(storage, RUN.layout).name)
    put_aside(storage, CONFIG, later, 2, "update")
    sweep(storage, later)
    assert numbers(storage, "hf/") == [1, 2]
    scope = later.iteration(1, records[0].policy)
    again = Artifact(path=scope.next_checkpoint, digest="other")
    storage.write_bytes(f"{again.path}/hf/model.safetensors", b"x")
    keep(storage, scope, "update", ["b"], again)
    sweep_stage(storage, scope.layout, [records[1].artifacts[0], again])
    assert [key for key in storage.list(RUN.layout.checkpoints) if "/000002-" in key] == [f"{again.path}/hf/model.safetensors"]
    assert storage.list(records[0].checkpoint)


def test_an_evaluation_that_was_done_again_replaces_the_one_before(storage: Storage) -> None:
    writer = Writer(RUN, take(storage, RUN.layout).name)
    scope = writer.evaluation(Weights(updates=1, digest="w1"))
    tables = [Artifact(path=f"{scope.layout.round(number).rewards}", digest=f"d{number}") for number in (0, 1)]
    for number, table in enumerate(tables):
        storage.write_bytes(table.path, b"x")
        keep(storage, scope, "evaluate", [f"w{number}"], table)
    sweep_stage(storage, scope.layout, [tables[1]])
    assert [result.artifact for result in results_of(storage, scope.layout)] == [tables[1]]
    assert not storage.exists(tables[0].path)


def test_results_of_a_finished_iteration_are_one_object_until_it_is_done_again(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 2)
    stages = [RUN.layout.iteration(number) for number in range(2)]
    separate = {key: storage.read_bytes(key) for stage in stages for key in storage.list(stage.results)}
    assert len(separate) == 4
    for _ in range(2):
        sweep(storage, writer)
        assert [storage.list(stage.results) for stage in stages] == [[], []]
    for lost in separate:  # a process that merges was killed while it deleted, or another one does the same
        unmerge(storage, stages[0])
        merge(storage, stages[0], records[0].artifacts)
        if lost.startswith(stages[0].folder):
            storage.write_bytes(lost, separate[lost])
            merge(storage, stages[0], records[0].artifacts)
    put_aside(storage, CONFIG, Writer(RUN, take(storage, RUN.layout).name), 1, "update")
    there = {key: storage.read_bytes(key) for stage in stages for key in storage.list(stage.results)}
    assert there == {key: data for key, data in separate.items() if "/update-" not in key}
    assert not any(storage.exists(stage.merged_results) for stage in stages)


def test_merged_results_that_are_damaged_or_name_other_places_are_done_again(storage: Storage, tmp_path: Path) -> None:
    writer, _ = made(storage, tmp_path, 1)
    stage = RUN.layout.iteration(0)
    sweep(storage, writer)
    (one, *_) = storage.read_json(stage.merged_results)["results"].values()
    storage.write_json(stage.merged_results, {"results": {"../../../x.json": one, "update-0123456789abcdef.json": one}})
    unmerge(storage, stage)
    assert storage.list(stage.results) == [f"{stage.results}/update-0123456789abcdef.json"]
    storage.write_bytes(stage.merged_results, b"{")
    unmerge(storage, stage)
    assert not storage.exists(stage.merged_results)


def test_a_damaged_result_of_a_finished_iteration_stops_no_sweep(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 2)
    for key in storage.list(RUN.layout.iteration(0).results):
        storage.write_bytes(key, b"{")
    lost = f"{RUN.layout.checkpoint(3, writer.epoch)}.partial"
    storage.write_bytes(f"{lost}/hf/model.safetensors", b"x")
    sweep(storage, writer)
    assert storage.list(lost) == []
    assert all(storage.list(record.checkpoint) for record in records)


def test_a_pin_that_cannot_be_read_stops_no_training(storage: Storage) -> None:
    storage.write_bytes(f"{RUN.layout.pins}/x.json", b"")
    assert pinned(storage, RUN) == set()
    assert storage.list(RUN.layout.pins) == []
