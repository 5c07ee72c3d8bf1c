"""Finished steps are found by their records, and a work folder holds one work of one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs import steps
from nbrl.tasks.runs.steps import StepRecord, check_work_folder, folder_steps, work_folder

MINE = {"seed": 42, "files.a": "digest"}


class LossRecord(StepRecord):
    loss: float


def kept(storage: Storage, content: bytes = b"content") -> LossRecord:
    record = LossRecord(objects={"made": storage.write_bytes("made", content)}, loss=1.0)
    return folder_steps(storage, LossRecord, print).keep("step.json", record)


def test_a_finished_step_is_found_with_all_that_it_made(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    assert folder_steps(storage, LossRecord, print).find("step.json", "the step") is None
    record = kept(storage)
    assert folder_steps(storage, LossRecord, print).find("step.json", "the step") == record


@pytest.mark.parametrize("lost", ["made", "step.json"])
def test_a_step_that_is_damaged_or_made_what_is_damaged_is_reported_and_done_again(tmp_path: Path, lost: str) -> None:
    storage, said = Storage(StorageSettings(root=str(tmp_path))), list[str]()
    kept(storage)
    (tmp_path / lost).write_bytes((tmp_path / lost).read_bytes()[:-1])
    assert folder_steps(storage, LossRecord, said.append).find("step.json", "the step") is None
    assert said[0].startswith("nbrl: the step is done again, for what it made is lost: ")
    assert not storage.exists("step.json")


@pytest.mark.parametrize("record", [{}, {"objects": {}, "values": {}}, {"loss": "much"}, {"loss": 1.0, "more": 2}, [], 7])
def test_a_record_of_other_fields_is_as_a_damaged_one(tmp_path: Path, record: Any) -> None:
    storage, reports = Storage(StorageSettings(root=str(tmp_path))), list[str]()
    (tmp_path / "step.json").write_text(json.dumps(record))
    assert folder_steps(storage, LossRecord, reports.append).find("step.json", "the step") is None
    assert reports[0].startswith("nbrl: the step is done again")


def test_a_record_stays_while_what_it_names_is_there(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    first = kept(storage)
    assert folder_steps(storage, LossRecord, print).keep("step.json", LossRecord(loss=2.0)) == first
    (tmp_path / "made").unlink()
    assert folder_steps(storage, LossRecord, print).keep("step.json", LossRecord(loss=2.0)).loss == 2.0


def test_a_work_folder_holds_one_work_and_one_process_works_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    check_work_folder(folder, MINE, "preparation")
    assert not folder.exists()
    with work_folder(folder, MINE, "preparation"):
        refused = pytest.raises(ConfigError, match=r"another process works in .*out; wait for it, or name another folder")
        with refused, work_folder(folder, MINE, "preparation"):
            pass
    check_work_folder(folder, MINE, "preparation")
    with pytest.raises(ConfigError, match=r"holds another preparation: seed is 1, the preparation began with 42\. Use the same"):
        check_work_folder(folder, MINE | {"seed": 1}, "preparation")


def test_what_a_kill_at_the_first_write_leaves_does_not_keep_the_work_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".writing-abcdef").write_text("half of the identity")
    check_work_folder(tmp_path, MINE, "preparation")
    with work_folder(tmp_path, MINE, "preparation") as storage:
        assert storage.exists("identity.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "identity.json"]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "out"
    victim.write_text("years of work")
    folder.mkdir()
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(ConfigError, match="cannot be written to"), work_folder(folder, MINE, "preparation"):
        pass
    assert victim.read_text() == "years of work"


def test_a_folder_that_another_work_took_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, took = tmp_path / "out", list[bool]()

    def check(where: Path, identity: dict[str, Any], what: str) -> None:
        check_work_folder(where, identity, what)
        if not took:  # another process begins between the check and the lock
            took.append(True)
            with work_folder(folder, MINE | {"seed": 1}, what):
                pass

    monkeypatch.setattr(steps, "check_work_folder", check)
    with pytest.raises(ConfigError, match="holds another preparation"), work_folder(folder, MINE, "preparation"):
        pass


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with (
        pytest.raises(ConfigError, match=r"holds other files, such as 'thesis.txt'"),
        work_folder(tmp_path, MINE, "preparation"),
    ):
        pass
    with pytest.raises(ConfigError, match="is a file"):
        check_work_folder(tmp_path / "thesis.txt", MINE, "preparation")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
