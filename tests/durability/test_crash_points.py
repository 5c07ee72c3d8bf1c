"""A run that is killed in front of any of its writes goes on from its storage, and ends as if it had not been killed."""

import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.audit import Audit
from nbrl.tasks.audit.recompute import sampled_from
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.runs.history import Record, newest_record, read_record
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.results import evaluation_of
from nbrl.tasks.runs.run import known_run
from tests.durability.conftest import Labs
from tests.durability.crash_doubles import DIED
from tests.durability.crash_lab import BRANCHES, LAG, RUN, WORLDS, Lab
from tests.durability.crash_tracking import FileTracking

pytestmark = pytest.mark.process

Wholes = Callable[[int], tuple[Path, int]]  # folder and number of steps, by lag


@pytest.fixture(scope="module")
def undisturbed(whole: tuple[Path, int]) -> dict[str, Any]:
    folder, steps = whole
    return {"steps": steps, "state": state(folder), "overrides": []}


def state(folder: Path) -> dict[str, Any]:
    """What a finished run came to, after an audit without a contradiction."""
    storage = Storage(StorageSettings(root=str(folder / "root")))
    run = known_run(storage, RUN)
    audit = Audit(storage, stored_config(storage, run), run, lambda said: None)
    tracking: Any = FileTracking(folder / "home" / "mlflow.json")
    assert list(audit.contradictions(tracking)) == []
    books = json.loads((folder / "home" / "mlflow.json").read_text())
    assert books["status"] == "FINISHED"
    newest = audit.records[-1]
    last = evaluation_of(storage, run, newest.policy)
    assert last
    return {
        "cursors": [record.cursor for record in audit.records],
        "weights": storage.read_bytes(f"{newest.checkpoint}/{HF}/model.safetensors").hex(),
        "evaluation": last.artifact.values,
        "models": sorted(books["models"]),
        "traces": len(books["traces"]),
        "evaluated": sorted(step for step, _ in tracking.history("more/eval/em")),
        "files": books["files"],
    }


@pytest.fixture(scope="module")
def undisturbed_with_lag(whole_with_lag: Wholes) -> Callable[[int], dict[str, Any]]:
    @cache
    def found(lag: int) -> dict[str, Any]:
        folder, steps = whole_with_lag(lag)
        return {"steps": steps, "state": state(folder), "overrides": LAG[lag]}

    return found


def resumed(lab: Lab, folder: Path, died: Path, keep_home: bool, overrides: list[str]) -> dict[str, Any]:
    shutil.copytree(died / "root", folder / "root") if (died / "root").exists() else None
    if keep_home and (died / "home").exists():
        shutil.copytree(died / "home", folder / "home")
    done = lab.train(folder / "root", folder / "home", overrides=overrides)
    assert done["status"] == 0, done["said"]
    return state(folder)


def check(labs: Labs, undisturbed: dict[str, Any], folder: Path, point: int, ways: list[str]) -> None:
    died = folder / str(point)
    end = labs[0].train(died / "root", died / "home", die_at=point, overrides=undisturbed["overrides"])
    assert end["status"] == DIED, end["said"]
    for way in ways:
        lab = labs[1] if way == "another Prefect" else labs[0]
        found = resumed(lab, folder / f"{point} {way}", died, way != "another home", undisturbed["overrides"])
        assert found == undisturbed["state"], f"killed in front of step {point}, continued with {way}"
    shutil.rmtree(folder)


WAYS = ["the same home", "another home", "another Prefect"]
FEW = sorted(random.Random(0).sample(range(1, 129), 8))


@pytest.mark.parametrize("point", [pytest.param(point, marks=() if point in (67, 78) else pytest.mark.more) for point in FEW])
def test_a_killed_run_ends_as_if_it_had_not_been(labs: Labs, undisturbed: dict[str, Any], tmp_path: Path, point: int) -> None:
    check(labs, undisturbed, tmp_path, min(point, undisturbed["steps"]), [WAYS[point % 3]])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_can_be_killed_in_front_of_any_of_its_writes(labs: Labs, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    assert undisturbed["steps"] >= 128
    for point in range(1, undisturbed["steps"] + 1):
        check(labs, undisturbed, tmp_path / "each", point, WAYS)


AT_RANDOM = [(1, random.Random(1).uniform(0.2, 0.8)), (1, random.Random(2).uniform(0.2, 0.8))]


@pytest.mark.more
@pytest.mark.parametrize(("lag", "share"), [(0, 0.55), (1, 0.45), (2, 0.6), *AT_RANDOM])
def test_a_run_with_few_states_or_that_samples_beside_updates_ends_as_if_it_had_not_been_killed(
    labs: Labs, undisturbed_with_lag: Callable[[int], dict[str, Any]], tmp_path: Path, lag: int, share: float
) -> None:
    undisturbed = undisturbed_with_lag(lag)
    point = round(share * undisturbed["steps"])
    check(labs, undisturbed, tmp_path, point, [WAYS[point % 3]])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_run_with_few_states_or_with_lag_can_be_killed_in_front_of_any_of_its_writes(
    labs: Labs, undisturbed_with_lag: Callable[[int], dict[str, Any]], tmp_path: Path, lag: int
) -> None:
    undisturbed = undisturbed_with_lag(lag)
    for point in range(1, undisturbed["steps"] + 1):
        check(labs, undisturbed, tmp_path / "each", point, [WAYS[point % 3]])


def audited_whole(labs: Labs, whole: Path, overrides: list[str]) -> tuple[dict[str, Any], Record, Audit]:
    """A run that nothing disturbs, its newest record, and its audit, which contradicts nothing."""
    done = labs[0].train(whole / "root", whole / "home", overrides=overrides)
    assert done["status"] == 0, done["said"]
    storage = Storage(StorageSettings(root=str(whole / "root")))
    run = known_run(storage, RUN)
    record, audit = newest_record(storage, run), Audit(storage, stored_config(storage, run), run, lambda said: None)
    assert record is not None
    assert list(audit.contradictions()) == []
    return {"steps": done["steps"], "state": state(whole), "overrides": overrides}, record, audit


@pytest.fixture(scope="module")
def undisturbed_with_branches(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    undisturbed, record, _ = audited_whole(labs, tmp_path_factory.mktemp("whole-with-branches"), BRANCHES)
    assert record.metrics["branch/made"] > 0
    return undisturbed


@pytest.mark.more
@pytest.mark.parametrize("share", [0.3, 0.4, 0.5])
def test_a_run_with_branches_makes_the_same_ones_however_it_was_killed(
    labs: Labs, undisturbed_with_branches: dict[str, Any], tmp_path: Path, share: float
) -> None:
    point = round(share * undisturbed_with_branches["steps"])
    check(labs, undisturbed_with_branches, tmp_path, point, [WAYS[point % 3]])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_with_branches_can_be_killed_in_front_of_any_of_its_writes(
    labs: Labs, undisturbed_with_branches: dict[str, Any], tmp_path: Path
) -> None:
    for point in range(1, undisturbed_with_branches["steps"] + 1):
        check(labs, undisturbed_with_branches, tmp_path / "each", point, [WAYS[point % 3]])


@pytest.fixture(scope="module")
def undisturbed_with_sessions(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    undisturbed, _, audit = audited_whole(labs, tmp_path_factory.mktemp("whole-with-sessions"), WORLDS)
    assert audit.sessions.sessions >= 6
    return undisturbed


@pytest.mark.more
@pytest.mark.parametrize("share", [0.35, 0.7])
def test_a_run_with_sessions_ends_with_the_same_ones_however_it_was_killed_and_its_audit_plays_them_again(
    labs: Labs, undisturbed_with_sessions: dict[str, Any], tmp_path: Path, share: float
) -> None:
    point = round(share * undisturbed_with_sessions["steps"])
    check(labs, undisturbed_with_sessions, tmp_path, point, [WAYS[point % 3]])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_with_sessions_can_be_killed_in_front_of_any_of_its_writes(
    labs: Labs, undisturbed_with_sessions: dict[str, Any], tmp_path: Path
) -> None:
    for point in range(1, undisturbed_with_sessions["steps"] + 1):
        check(labs, undisturbed_with_sessions, tmp_path / "each", point, [WAYS[point % 3]])


CORRECTED = ["iterations=3", "pipeline.lag=1", "update.tis.kind=mask_tokens", "checkpoints.keep_last=2"]


@pytest.mark.more
@pytest.mark.parametrize(("share", "same"), [(0.3, False), (0.85, True)], ids=["while it samples", "when all is sampled"])
def test_a_loss_that_reads_log_probs_gives_the_same_weights_after_a_kill_if_nothing_was_being_sampled(
    labs: Labs, tmp_path: Path, share: float, same: bool
) -> None:
    whole = labs[0].train(tmp_path / "root", tmp_path / "home", overrides=CORRECTED)
    died = tmp_path / "died"
    end = labs[0].train(died / "root", died / "home", die_at=round(share * whole["steps"]), overrides=CORRECTED)
    assert end["status"] == DIED, end["said"]
    first, second = (resumed(labs[0], tmp_path / name, died, True, CORRECTED) for name in ("first", "second"))
    assert (first["weights"] == second["weights"]) is same
    assert sampled(tmp_path / "first") == sampled(tmp_path / "second")


def sampled(folder: Path) -> list[Any]:
    """Tokens and versions of all trajectories of each batch, which tell of the prompts too."""
    storage, records = records_of(folder)
    tables = [storage.read_table(round_.trajectories.path) for record in records for round_ in record.rounds]
    return [
        [(row["id"], [(node["token_ids"], node["weights_version"]) for node in row["nodes"]]) for row in table.to_pylist()]
        for table in tables
    ]


def records_of(folder: Path) -> tuple[Storage, list[Record]]:
    storage = Storage(StorageSettings(root=str(folder / "root")))
    run = known_run(storage, RUN)
    newest = newest_record(storage, run)
    assert newest
    read = (read_record(storage, run, number) for number in range(newest.iteration + 1))
    return storage, [record for record in read if record]


@pytest.mark.more
def test_a_question_that_was_answered_right_is_not_asked_again(whole_with_lag: Wholes) -> None:
    storage, records = records_of(whole_with_lag(1)[0])
    passed: set[str] = set()
    for record in records:
        for round_, retired in zip(record.rounds, record.asked, strict=True):
            assert passed.isdisjoint(storage.read_table(round_.prompts.path)["id"].to_pylist())
            passed = set(storage.read_table(retired.path)["id"].to_pylist())
    assert passed
    asked = sum(4 for record in records for _ in record.rounds)
    assert records[-1].cursor > asked  # positions of retired questions were passed over


@pytest.mark.more
@pytest.mark.parametrize(("lag", "samplers"), [(1, [0, 0, 1]), (2, [0, 0, 0, 1, 2])])
def test_with_lag_each_batch_is_sampled_from_weights_so_many_updates_older(
    whole_with_lag: Wholes, lag: int, samplers: list[int]
) -> None:
    storage, records = records_of(whole_with_lag(lag)[0])
    versions = [
        {str(version) for round_ in record.rounds for version in sampled_from(storage.read_table(round_.trajectories.path))}
        for record in records
    ]
    assert versions == [{str(updates)} for updates in samplers]
    assert [record.updates for record in records] == [number + 1 for number in range(len(samplers))]
