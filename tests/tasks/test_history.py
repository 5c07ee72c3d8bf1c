from pathlib import Path

import pytest

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import RunError
from nbrl.tasks.learner.proof import Mismatch
from nbrl.tasks.nodes.publish import published_mismatch
from nbrl.tasks.runs.history import (
    Record,
    check_samples,
    damaged_checkpoint,
    newest_policy,
    newest_record,
    policies_in_use,
    sampler_of,
    skipped_in_row,
)
from nbrl.tasks.runs.run import Run

RUN = Run(name="a", run_id="x", config_digest="y", seed=0, recipe="r", policy="w0", config={})


def made(iteration: int, updates: int, skipped: str = "") -> Record:
    checkpoint = RUN.layout.checkpoint(updates, "e0001-abcdef") if updates else ""
    return Record(
        iteration=iteration,
        cursor=0,
        checkpoint=checkpoint,
        artifacts=[],
        metrics={},
        skipped=skipped,
        run_id=RUN.run_id,
        epoch="e0001-abcdef",
        finished=1.0,
        weights=checkpoint or RUN.policy,
    )


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
    assert said == f"state/a is damaged; `nbrl resume a --redo 3:update --root {tmp_path}` makes the checkpoint again"


def test_a_batch_is_sampled_from_the_policy_before_the_last_iterations_of_the_lag() -> None:
    records = [made(0, 1), made(1, 1, "all right"), made(2, 2)]
    by_lag = {lag: [sampler_of(RUN, records, number, lag).updates for number in range(4)] for lag in (0, 1, 2)}
    assert by_lag == {0: [0, 1, 1, 2], 1: [0, 0, 1, 1], 2: [0, 0, 0, 1]}


def test_samples_that_say_little_three_times_in_a_row_stop_the_run() -> None:
    def with_share(share: float) -> Record:
        return made(0, 1).model_copy(update={"metrics": {"mismatch/ess_share": share}})

    low, high, skipped = with_share(0.1), with_share(0.9), made(1, 1, "all right")
    check_samples(RUN, [low, low], 0.5)
    check_samples(RUN, [low, low, high, low, low], 0.5)
    check_samples(RUN, [low, low, low], 0.0)
    with pytest.raises(RunError, match=r"was 0\.1, 0\.1, 0\.1 in the last 3 iterations, below update\.ess_floor 0\.5"):
        check_samples(RUN, [high, low, skipped, low, low], 0.5)


@pytest.mark.parametrize(("lag", "updates"), [(0, [2]), (1, [1, 2]), (3, [1, 2]), (2, [1, 2])])
def test_with_a_lag_the_policies_before_the_newest_one_are_in_use_too(tmp_path: Path, lag: int, updates: list[int]) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    assert policies_in_use(storage, RUN, lag) == []
    for record in (made(0, 0, "all wrong"), made(1, 1), made(2, 2)):
        storage.write_bytes(RUN.layout.iteration(record.iteration).record, record.model_dump_json().encode())
    assert [policy.updates for policy in policies_in_use(storage, RUN, lag)] == updates


def test_the_mismatch_of_the_weights_is_that_of_the_last_publish() -> None:
    metrics = {"publish/mismatch_mean_abs": 0.01, "publish/mismatch_p99_abs": 0.1}
    first = made(0, 1).model_copy(update={"metrics": metrics})
    assert published_mismatch([]) == published_mismatch([made(0, 0)]) == Mismatch(mean=0, high=0)
    assert published_mismatch([first, made(1, 1, "all right")]) == Mismatch(mean=0.01, high=0.1)
