"""Finished steps are found by their records, and a work folder holds one work of one process."""

from pathlib import Path

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.steps import StepRecord, check_work_folder, folder_steps, work_folder

MINE = {"seed": 42, "files.a": "digest"}


def kept(storage: Storage, content: bytes = b"content") -> StepRecord:
    record = StepRecord(objects={"made": storage.write_bytes("made", content)}, values={"loss": 1.0})
    return folder_steps(storage, print).keep("step.json", record)


def test_a_finished_step_is_found_with_all_that_it_made(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    assert folder_steps(storage, print).find("step.json", "the step") is None
    record = kept(storage)
    assert folder_steps(storage, print).find("step.json", "the step") == record


@pytest.mark.parametrize("lost", ["made", "step.json"])
def test_a_step_that_is_damaged_or_made_what_is_damaged_is_reported_and_done_again(tmp_path: Path, lost: str) -> None:
    storage, said = Storage(StorageSettings(root=str(tmp_path))), list[str]()
    kept(storage)
    (tmp_path / lost).write_bytes((tmp_path / lost).read_bytes()[:-1])
    assert folder_steps(storage, said.append).find("step.json", "the step") is None
    assert said[0].startswith("nbrl: the step is done again, for what it made is lost: ")
    assert not storage.exists("step.json")


def test_a_record_stays_while_what_it_names_is_there(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    first = kept(storage)
    assert folder_steps(storage, print).keep("step.json", StepRecord(values={"loss": 2.0})) == first
    (tmp_path / "made").unlink()
    assert folder_steps(storage, print).keep("step.json", StepRecord(values={"loss": 2.0})).values == {"loss": 2.0}


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
