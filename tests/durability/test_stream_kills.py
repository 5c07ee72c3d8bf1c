"""A run whose rollouts never stop is killed again and again: what finished is not lost, sampled again or learned from twice."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nbrl.agent.trajectory import Status, Trajectory, from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.audit import Audit
from nbrl.tasks.layout.stages import is_chunk
from nbrl.tasks.nodes.streamed import admitted_attempts
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import known_run
from tests.durability.conftest import Labs
from tests.durability.crash_doubles import DIED
from tests.durability.crash_lab import RUN, STREAM, Lab

pytestmark = pytest.mark.process


def attempts(storage: Storage) -> dict[tuple[str, str], Trajectory]:
    """The trajectories of the stream on storage, by id and part."""
    keys = [key for key in storage.list("runs/r/stream") if is_chunk(key)]
    return {(each.id, key): each for key in keys for each in from_table(storage.read_table(key))}


def finished(tried: Mapping[tuple[str, str], Trajectory]) -> dict[str, Any]:
    """The nodes of trajectories, by id, but for those that failed, which may be run again."""
    return {each.id: each.nodes for each in tried.values() if each.status is not Status.FAILED}


def check_kills(lab: Lab, home: Path, root: str, admit: str, kills: int) -> None:
    """Kill a run so many times; it has an iteration for every two of them at least."""
    storage, draw = Storage(StorageSettings(root=root)), random.Random(kills)
    overrides = [*STREAM, f"pipeline.admit={admit}", f"iterations={max(5, kills // 2)}", "rollout.failed_share=0.9"]
    tried, found, died = dict[tuple[str, str], Trajectory](), dict[str, Any](), 0
    while died < kills:
        assert lab.train(root, home, die_at=draw.randint(10, 40), overrides=overrides)["status"] == DIED
        died += 1
        tried |= (left := attempts(storage))
        for identity, nodes in finished(left).items():
            assert found.setdefault(identity, nodes) == nodes, f"{identity} was sampled twice"
    end = lab.train(root, home, overrides=overrides)
    assert end["status"] == 0, end["said"]
    run = known_run(storage, RUN)
    audit = Audit(storage, config := stored_config(storage, run), run, lambda said: None)
    assert list(audit.contradictions()) == []
    rounds = [record.rounds[0] for record in audit.records]
    learned = {
        each.id: each for round_ in rounds for part in round_.trajectories.parts for each in from_table(storage.read_table(part))
    }
    assert {identity: learned[identity].nodes for identity in found.keys() & learned.keys()}.items() <= found.items()
    assert not {identity for identity, _ in attempts(storage)} & learned.keys(), "left over"
    assert found.keys() <= learned.keys() | finished(attempts(storage)).keys()
    admitted = {each for round_ in rounds for each in admitted_attempts(config, storage.read_table(round_.prompts.path)).items()}
    assert all(learned[identity] == tried[identity, part] for identity, part in admitted & tried.keys())


@pytest.mark.more
@pytest.mark.parametrize("admit", ["finish", pytest.param("quota", marks=pytest.mark.long)])
def test_a_stream_that_is_killed_again_and_again_learns_from_what_finished_once(labs: Labs, tmp_path: Path, admit: str) -> None:
    check_kills(labs[0], tmp_path / "home", str(tmp_path / "root"), admit, 10)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_stream_on_a_cloud_is_killed_again_and_again(cloud_labs: list[Lab], tmp_path: Path) -> None:
    check_kills(cloud_labs[0], tmp_path / "home", "s3://bucket/x", "finish", 20)
