"""What is damaged in a run is a contradiction that its audit names, and never the end of the audit."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.infra.storage import Storage
from nbrl.tasks.audit.audit import Audit
from nbrl.tasks.audit.chain import check_update
from nbrl.tasks.audit.recompute import check_classes
from nbrl.tasks.environments.kinds.own import SHIPPED
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout.checkpoints import RESULT
from nbrl.tasks.runs.history import Record, read_record
from nbrl.tasks.runs.kept import UNFIT
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from tests.tasks.comparison import made
from tests.tasks.storing import keep

CONFIG = load("tiny-cpu")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return made.storage_in(tmp_path)


@pytest.fixture
def run(storage: Storage) -> Run:
    return made.run(storage, "r", {0: [1, 0, 0, 0]}, rollouts=[0.25, 0.5])


def found(storage: Storage, run: Run) -> list[tuple[str, str]]:
    return [(each.where, each.what) for each in Audit(storage, CONFIG, run, lambda said: None).contradictions()]


@pytest.mark.parametrize("data", [b'{"iteration": 0, "ord', b"\xff", b"[]", b"{}", b'{"canary_token_ids": [1]}'])
def test_a_damaged_result_of_an_update_is_named_and_its_weights_are_looked_at_all_the_same(
    storage: Storage, run: Run, data: bytes
) -> None:
    checkpoint = run.layout.checkpoint(1, "e0001-abcdef")
    storage.write_bytes(f"{checkpoint}/{RESULT}", data)
    storage.write_bytes(f"{checkpoint}/manifest.json", b"{}")
    record = Record(
        iteration=0,
        cursor=4,
        checkpoint=checkpoint,
        artifacts=[Artifact(path=checkpoint, digest="w1")],
        metrics={},
        run_id=run.run_id,
        epoch="e0001-abcdef",
        finished=1.0,
        weights="w1",
    )
    assert list(check_update(storage, CONFIG, run, record, Weights(digest="w0"), 0)) == [
        f"{storage.uri(f'{checkpoint}/{RESULT}')} is damaged: it is no result of an update; bring it back from a copy",
        "the checkpoint holds other weights than the update made",
    ]


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"iteration": "none"}'])
def test_a_damaged_copy_of_a_record_is_named_and_later_records_are_read(storage: Storage, run: Run, data: bytes) -> None:
    storage.write_bytes(run.layout.iteration(0).record_copy, data)
    audit = Audit(storage, CONFIG, run, lambda said: None)
    contradictions = [each.what for each in audit.contradictions() if each.where == "records"]
    assert contradictions == ["the copy of the record of iteration 1 is another, or damaged"]
    assert len(audit.records) == 2


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"a": "b"}'])
def test_damaged_digests_of_the_questions_are_named_wherever_they_are_needed(storage: Storage, run: Run, data: bytes) -> None:
    storage.write_bytes(run.layout.data.digests, data)
    places = [where for where, what in found(storage, run) if "damaged" in what or "does not exist" in what]
    assert {"data", "iteration 1", "iteration 2", "evaluation after 0 updates"} <= set(places)


def test_a_result_of_an_evaluation_without_trajectories_is_named(storage: Storage, run: Run) -> None:
    weights = Weights(updates=1, digest="w1")
    scope = Scope(run="r", run_id=run.run_id, seed=0, epoch="e0001-abcdef", iteration=1, weights=weights, stage="evaluation")
    keep(storage, scope, "evaluate", ["w1"], Artifact(path="runs/r/nowhere/rewards.parquet", digest="d"))
    (what,) = [what for where, what in found(storage, run) if where == "evaluation after 1 updates"]
    assert "its files do not fit together" in what


@pytest.mark.parametrize("left", [1, 3], ids=["half a round", "no trajectories"])
def test_a_record_whose_rounds_are_not_whole_is_named(storage: Storage, run: Run, left: int) -> None:
    key = run.layout.iteration(1).record
    fields: dict[str, Any] = storage.read_json(key)
    fields["artifacts"] = fields["artifacts"][left:]
    storage.write_json(key, fields)
    assert read_record(storage, run, 1) is not None
    assert any(where == "iteration 2" and "its files do not fit together" in what for where, what in found(storage, run))


@pytest.mark.parametrize(
    ("rule", "reference"),
    [
        ("own", '{"place": "subprocess:call", "settings": {}, "reference": null}'),
        ("world", '{"place": "os:getcwd", "settings": {}, "reference": null}'),
        ("own", f'{{"place": "{SHIPPED}shop:Shop", "settings": {{"size": 1}}, "reference": null}}'),
        ("own", '{"place": {"a": 1}, "settings": []}'),
        ("own", "{}"),
        ("own", ""),
        ("world", "[" * 100_000),
    ],
)
def test_a_table_of_questions_chooses_no_class_beside_those_of_the_settings(rule: str, reference: str) -> None:
    named = {"kind": "own", "place": f"{SHIPPED}shop:Shop", "settings": {}}
    config = load("tiny-cpu", [f"environments.shop={json.dumps(named)}"])
    known = json.dumps({**{name: named[name] for name in ("place", "settings")}, "reference": 1})
    check_classes(pa.table({"rule": ["world", "qa", None], "reference": [known, "", None]}), config)
    with pytest.raises((BrokenInvariantError, *UNFIT)):
        check_classes(pa.table({"rule": [rule], "reference": [reference]}), config)
