from pathlib import Path

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.history import Record, damaged_checkpoint, newest_policy, newest_record, skipped_in_row
from nbrl.tasks.runs.run import Run

RUN = Run(name="a", run_id="x", config_digest="y", seed=0, recipe="r")


def made(iteration: int, updates: int, skipped: str = "") -> Record:
    checkpoint = RUN.layout.checkpoint(updates, "e0001-abcdef") if updates else ""
    return Record(iteration=iteration, cursor=0, checkpoint=checkpoint, artifacts=[], metrics={}, skipped=skipped)


def test_a_skipped_iteration_is_counted_and_makes_no_update(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    assert (newest_record(storage, RUN), newest_policy(storage, RUN).updates) == (None, 0)
    records = [made(0, 0, "all wrong"), made(1, 1), made(2, 1, "all right")]
    for record in records:
        storage.write_bytes(RUN.layout.iteration(record.iteration).record, record.model_dump_json().encode())
    assert newest_record(storage, RUN) == records[2]
    assert [record.updates for record in records] == [0, 1, 1]
    assert newest_policy(storage, RUN).updates == 1


def test_records_after_a_gap_do_not_count(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    for record in (made(0, 1), made(2, 3)):
        storage.write_bytes(RUN.layout.iteration(record.iteration).record, record.model_dump_json().encode())
    assert newest_policy(storage, RUN).updates == 1


def test_iterations_without_an_update_count_in_a_row_at_the_end() -> None:
    assert skipped_in_row([]) == 0
    assert skipped_in_row([made(0, 0, "why"), made(1, 1)]) == 0
    assert skipped_in_row([made(0, 1), made(1, 1, "why"), made(2, 1, "why")]) == 2
    assert skipped_in_row([made(0, 0, "why")]) == 1


def test_a_damaged_checkpoint_is_made_again_by_the_iteration_that_made_it(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    for record in (made(0, 1), made(1, 1, "all right"), made(2, 2), made(3, 2, "all wrong")):
        storage.write_bytes(RUN.layout.iteration(record.iteration).record, record.model_dump_json().encode())
    policy = newest_policy(storage, RUN)
    said = str(damaged_checkpoint(storage, RUN, policy, DamagedError("state/a is damaged")))
    assert said == "state/a is damaged; `nbrl resume a --redo 3:update` makes the checkpoint again"
