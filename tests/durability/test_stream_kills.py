"""A run whose rollouts never stop is killed again and again: what finished is not lost, sampled again or learned from twice."""

import random
from pathlib import Path
from typing import Any

import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.audit import Audit
from nbrl.tasks.layout.stages import is_chunk
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import known_run
from tests.durability.conftest import Labs
from tests.durability.crash_doubles import DIED
from tests.durability.crash_lab import RUN, STREAM, Lab

pytestmark = pytest.mark.process


def finished(storage: Storage) -> dict[str, Any]:
    """The sampled nodes of every trajectory of the stream that is on storage, by id."""
    keys = [key for key in storage.list("runs/r/stream") if is_chunk(key)]
    return {each.id: each.nodes for key in keys for each in from_table(storage.read_table(key))}


def check_kills(lab: Lab, home: Path, root: str, admit: str, kills: int) -> None:
    """Kill a run so many times; it has an iteration for every two of them at least."""
    storage, draw = Storage(StorageSettings(root=root)), random.Random(kills)
    overrides = [*STREAM, f"pipeline.admit={admit}", f"iterations={max(5, kills // 2)}"]
    found, died = dict[str, Any](), 0
    while died < kills:
        assert lab.train(root, home, die_at=draw.randint(10, 40), overrides=overrides)["status"] == DIED
        died += 1
        for identity, nodes in finished(storage).items():
            assert found.setdefault(identity, nodes) == nodes, f"{identity} was sampled twice"
    end = lab.train(root, home, overrides=overrides)
    assert end["status"] == 0, end["said"]
    run = known_run(storage, RUN)
    audit = Audit(storage, stored_config(storage, run), run, lambda said: None)
    assert list(audit.contradictions()) == []
    parts = [part for record in audit.records for part in record.rounds[0].trajectories.parts]
    learned = {each.id: each.nodes for part in parts for each in from_table(storage.read_table(part))}
    assert {identity: learned[identity] for identity in found.keys() & learned.keys()}.items() <= found.items()
    assert found.keys() <= learned.keys() | finished(storage).keys()


@pytest.mark.more
@pytest.mark.parametrize("admit", ["finish", pytest.param("quota", marks=pytest.mark.long)])
def test_a_stream_that_is_killed_again_and_again_learns_from_what_finished_once(labs: Labs, tmp_path: Path, admit: str) -> None:
    check_kills(labs[0], tmp_path / "home", str(tmp_path / "root"), admit, 10)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_stream_on_a_cloud_is_killed_again_and_again(cloud_labs: list[Lab], tmp_path: Path) -> None:
    check_kills(cloud_labs[0], tmp_path / "home", "s3://bucket/x", "finish", 20)
