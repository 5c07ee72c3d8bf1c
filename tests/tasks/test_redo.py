"""Iterations that are done again: what is put aside, and what a kill in between leaves."""

from contextlib import suppress
from pathlib import Path

import pytest

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import CheckpointSettings
from nbrl.tasks.runs.history import Record, check_unbroken, read_record
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.redo import parse, put_aside
from nbrl.tasks.runs.results import results_of
from nbrl.tasks.runs.retention import prune
from nbrl.tasks.runs.sweep import sweep
from tests.tasks.checkpoint_lab import CONFIG, RUN, made, new_storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return new_storage(tmp_path)


@pytest.mark.parametrize("text", ["", "0", "x", "3:", "3:publish", "-1", "3:rollout:x"])
def test_what_names_no_iteration_is_not_redone(text: str) -> None:
    with pytest.raises(ConfigError, match="is not ITERATION or ITERATION:NODE"):
        parse(text)


def test_a_node_is_put_aside_with_all_records_from_there(storage: Storage, tmp_path: Path) -> None:
    writer, _ = made(storage, tmp_path, 3)
    storage.write_json(RUN.layout.summary, {"run": "r"})
    put_aside(storage, CONFIG, writer, *parse("2:update"))
    assert read_record(storage, RUN, 0) is not None
    assert [read_record(storage, RUN, number) for number in (1, 2)] == [None, None]
    assert [result.node for result in results_of(storage, RUN.layout.iteration(1))] == ["advantage"]
    # Found again if its inputs come out the same; but the update is not, for it names the one before it.
    assert [result.node for result in results_of(storage, RUN.layout.iteration(2))] == ["advantage"]
    aside = [key for key in storage.list(RUN.layout.folder) if f"/redone-{writer.epoch}/" in key]
    assert sorted(key.rpartition("/")[2].partition("-")[0] for key in aside) == [
        "record.json",
        "record.json",
        "summary.json",
        "update",
        "update",
    ]
    with pytest.raises(ConfigError, match="has no iteration 4 to do again; it has finished 1"):
        put_aside(storage, CONFIG, writer, 4, "")


def test_an_iteration_whose_start_was_deleted_cannot_be_redone(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 3)
    prune(storage, RUN, records, {}, CheckpointSettings(keep_last=1))
    with pytest.raises(ConfigError, match="the checkpoint after 1 updates, which it starts from, was deleted"):
        put_aside(storage, CONFIG, writer, 2, "")


def test_an_iteration_whose_start_lacks_a_state_and_a_table_cannot_be_redone(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 4)
    prune(storage, RUN, records, {1: 1.0}, CheckpointSettings(keep_last=1))
    put_aside(storage, CONFIG, writer, 2, "record")  # whose start is there, without its state: updates can be repeated
    storage.delete(records[0].artifacts[0].path)
    with pytest.raises(ConfigError, match="or what is needed to make its optimiser state again"):
        put_aside(storage, CONFIG, writer, 2, "")
    assert read_record(storage, RUN, 1) is not None


def test_rollouts_whose_weights_were_deleted_cannot_be_redone_with_a_lag(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 3)
    prune(storage, RUN, records, {}, CheckpointSettings(keep_last=2))
    lagging = load("tiny-cpu", ["pipeline.lag=1", "pipeline.uncorrected=true"])
    with pytest.raises(
        ConfigError, match="the checkpoint after 1 updates, from which the rollouts of iteration 3 are sampled, was deleted"
    ):
        put_aside(storage, lagging, writer, 3, "rollout")
    assert read_record(storage, RUN, 2) is not None
    put_aside(storage, lagging, writer, 3, "update")
    assert read_record(storage, RUN, 2) is None


def test_a_redo_that_is_killed_leaves_no_record_after_a_gap(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _ = made(storage, tmp_path, 3)
    delete = Storage.delete

    def killed(self: Storage, key: str) -> None:
        delete(self, key)
        raise KeyboardInterrupt

    monkeypatch.setattr(Storage, "delete", killed)
    with pytest.raises(KeyboardInterrupt):
        put_aside(storage, CONFIG, writer, 2, "")
    check_unbroken(storage, RUN)
    assert [read_record(storage, RUN, number) is not None for number in range(3)] == [True, True, False]


@pytest.mark.parametrize("deleted", range(1, 8))
def test_a_redo_that_is_killed_leaves_no_update_after_one_that_is_put_aside(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    writer, _ = made(storage, tmp_path, 3)
    delete, left = Storage.delete, iter(range(deleted))

    def killed(self: Storage, key: str) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        delete(self, key)

    monkeypatch.setattr(Storage, "delete", killed)
    with suppress(KeyboardInterrupt):
        put_aside(storage, CONFIG, writer, 1, "update")
    there = ["update" in {each.node for each in results_of(storage, RUN.layout.iteration(number))} for number in range(3)]
    assert there == sorted(there, reverse=True)


def test_a_lost_record_before_others_is_an_error_that_a_redo_mends(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 3)
    storage.delete(RUN.layout.iteration(1).record)
    with pytest.raises(DamagedError, match=r"000001/record\.json is gone, .* with `nbrl resume r --redo 2:record --root "):
        check_unbroken(storage, RUN)
    put_aside(storage, CONFIG, writer, 2, "record")
    assert [read_record(storage, RUN, number) for number in range(3)] == records
    storage.delete_keys([RUN.layout.iteration(1).record, RUN.layout.iteration(1).record_copy])
    put_aside(storage, CONFIG, writer, 2, "record")
    check_unbroken(storage, RUN)
    assert read_record(storage, RUN, 2) is None


def test_a_copy_never_brings_back_what_was_put_aside(storage: Storage, tmp_path: Path) -> None:
    writer, _ = made(storage, tmp_path, 4)
    storage.delete_keys([RUN.layout.iteration(1).record, RUN.layout.iteration(1).record_copy])
    put_aside(storage, CONFIG, writer, 2, "record")
    assert [key for key in storage.list(RUN.layout.iterations) if key.endswith("record-copy.json")] == [
        RUN.layout.iteration(0).record_copy
    ]
    made(storage, tmp_path / "again", 1)
    storage.write_json(RUN.layout.iteration(0).record_copy, {**storage.read_json(RUN.layout.iteration(0).record), "cursor": 7})
    storage.delete(RUN.layout.iteration(0).record)
    storage.delete(storage.read_json(RUN.layout.iteration(0).record_copy)["artifacts"][0]["path"])
    put_aside(storage, CONFIG, writer, 1, "record")  # a copy of which a table is gone is none
    assert read_record(storage, RUN, 0) is None


def test_a_redo_may_be_repeated_until_the_run_has_finished(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 3)
    said: list[str] = []
    put_aside(storage, CONFIG, writer, 2, "record", said.append)
    assert said == ["nbrl: the record of iteration 2 is whole; nothing is done again"]
    put_aside(storage, CONFIG, writer, 2, "")
    storage.create_json(RUN.layout.iteration(1).record, records[1].model_dump(mode="json"))  # done again
    put_aside(storage, CONFIG, writer, 2, "", said.append)
    assert said[1].startswith("nbrl: an earlier start put iteration 2 aside; the run goes on from there")
    assert read_record(storage, RUN, 1) == records[1]
    put_aside(storage, CONFIG, writer, 2, "sample")
    assert read_record(storage, RUN, 1) is None
    storage.create_json(RUN.layout.iteration(1).record, records[1].model_dump(mode="json"))
    storage.write_json(RUN.layout.summary, {"run": "r"})
    put_aside(storage, CONFIG, writer, 2, "sample")
    assert read_record(storage, RUN, 1) is None


def test_a_missing_copy_of_a_record_is_made_at_the_next_start(storage: Storage, tmp_path: Path) -> None:
    writer, records = made(storage, tmp_path, 2)
    copy = RUN.layout.iteration(1).record_copy
    storage.delete(copy)
    sweep(storage, writer)
    assert Record.model_validate(storage.read_json(copy)) == records[1]
