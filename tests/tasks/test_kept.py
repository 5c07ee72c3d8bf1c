"""Keys in what a run keeps of itself lie below its own folder."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import RunLayout, lies_below
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.kept import read_kept
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.run import find_run
from nbrl.tasks.runs.sweep import sweep_stage
from tests.tasks.synced import RUN

ELSEWHERE = [
    "runs/mine",
    "runs/mine/checkpoint",
    "runs/r",
    "runs/r/../mine/x",
    "../mine",
    "/etc/passwd",
    "runs/r-2/x",
    "runs/r/./x",
]
STAGE = RunLayout("r").iteration(0)
ARTIFACT = {"path": f"{STAGE.folder}/e0001-a/rewards.parquet", "digest": "d"}


@pytest.fixture
def storage(tmp_path: Any) -> Storage:
    return Storage(StorageSettings(root=str(tmp_path)))


def result(**artifact: Any) -> dict[str, Any]:
    fields = {"node": "update", "run_id": "1", "epoch": "e0001-a", "inputs": [], "finished": 0.0, "version": "1"}
    return {**fields, "artifact": {**ARTIFACT, **artifact}}


@pytest.mark.parametrize("key", ELSEWHERE)
@pytest.mark.attack(
    tried="Name what is another run's in a record, to have it read or deleted",
    wall="keys of a run lie below its folder",
    effect="one sentence",
)
def test_a_result_or_a_record_that_names_what_is_elsewhere_is_damaged(storage: Storage, key: str) -> None:
    at, record = f"{STAGE.results}/update-1.json", {"iteration": 0, "cursor": 0, "metrics": {}}
    for fields in (result(path=key), result(parts={key: "d"})):
        storage.write_json(at, fields)
        with pytest.raises(DamagedError, match=r"does not lie below runs/r"):
            read_kept(storage, at, NodeResult)
    for fields in ({"checkpoint": key, "artifacts": []}, {"checkpoint": "", "artifacts": [{**ARTIFACT, "path": key}]}):
        storage.write_json(STAGE.record, record | fields)
        with pytest.raises(DamagedError, match=r"does not lie below runs/r"):
            read_kept(storage, STAGE.record, Record)


def test_what_lies_below_the_run_is_read(storage: Storage) -> None:
    at = f"{STAGE.results}/update-1.json"
    storage.write_json(at, result(parts={f"{STAGE.folder}/e0001-a/chunk.parquet": "d"}))
    assert read_kept(storage, at, NodeResult).artifact.path == ARTIFACT["path"]


@pytest.mark.parametrize("name", ["other", "/tmp/elsewhere", "../other", "", "a" * 300, "\x00"])
@pytest.mark.attack(
    tried="Give a run's own name as another run's, or as a path",
    wall="what a run's file says of itself must be its folder's name",
    effect="one sentence; the other run and the path are as they were",
)
def test_a_run_that_says_that_it_is_another_one_is_none(storage: Storage, name: str) -> None:
    storage.write_json(RUN.layout.identity, RUN.model_dump(mode="json") | {"name": name})
    with pytest.raises(ConfigError, match=r"is of another run, .*; give its folder that name"):
        find_run(storage, RUN.name)


@pytest.mark.attack(
    tried="Name what is another run's in a record, where a run that goes on clears away",
    wall="keys of a run lie below its folder",
    effect="the other run is as it was",
)
def test_a_sweep_deletes_nothing_of_another_run(storage: Storage) -> None:
    storage.write_bytes("runs/mine/config.yaml", b"precious")
    storage.write_json(f"{STAGE.results}/update-1.json", result(path="runs/mine"))
    sweep_stage(storage, STAGE, [])
    assert storage.list("runs/mine") == ["runs/mine/config.yaml"]


@pytest.mark.parametrize("part", [*ELSEWHERE[:2], None])
@pytest.mark.attack(
    tried="Name what is another run's in the index of a table",
    wall="keys of a run lie below its folder",
    effect="one sentence",
)
def test_an_index_names_parts_of_its_own_run_alone(storage: Storage, part: str | None) -> None:
    key = f"{STAGE.folder}/e0001-a/trajectories.index.parquet"
    columns = {"part": pa.array([part], pa.string()), "sha256": pa.array(["d"]), "row": pa.array([0])}
    storage.write_table(key, pa.table(columns))
    for read in (storage.read_table, storage.read_index):
        with pytest.raises(DamagedError, match="which does not lie below runs/r"):
            read(key)


@given(st.lists(st.sampled_from(["runs", "r", "..", ".", "", "x"])).map("/".join))
def test_whatever_is_taken_to_lie_below_a_folder_does(key: str) -> None:
    if lies_below(key, "runs/r"):
        assert key.split("/")[:2] == ["runs", "r"]
        assert not {"..", ".", ""}.intersection(key.split("/"))
