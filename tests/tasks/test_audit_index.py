"""The audit holds the index of a round against its trajectories."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nbrl.infra.parts import parts_of
from nbrl.infra.storage import Storage
from nbrl.tasks.audit.recompute import check_index
from nbrl.tasks.audit.replay import _inputs_of
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder
from nbrl.tasks.nodes.rollout import rollout_metrics
from nbrl.tasks.runs.scope import Artifact
from tests.tasks.nodes.doubles import services
from tests.tasks.nodes.test_rollout import rolled_out


@pytest.fixture
def made(tmp_path: Path) -> tuple[Storage, Artifact, pa.Table]:
    having = services(tmp_path)
    artifact = rolled_out(having)
    return having.storage, artifact, having.storage.read_table(artifact.path, artifact.digest)


def test_an_index_that_was_not_touched_has_no_contradiction(made: tuple[Storage, Artifact, pa.Table]) -> None:
    assert list(check_index(*made)) == []


def test_an_index_with_another_status_or_figure_is_a_contradiction(made: tuple[Storage, Artifact, pa.Table]) -> None:
    storage, artifact, trajectories = made
    index = storage.read_index(artifact.path)
    more = index.set_column(index.column_names.index("steps"), "steps", pc.add(index["steps"], 1))
    digest = storage.write_table(artifact.path, more)
    forged = Artifact(path=artifact.path, digest=digest, parts=parts_of(more), metrics=rollout_metrics(more))
    assert list(check_index(storage, forged, trajectories)) == ["the index differs from the trajectories"]


def test_counts_that_the_index_does_not_give_are_a_contradiction(made: tuple[Storage, Artifact, pa.Table]) -> None:
    storage, artifact, trajectories = made
    other = artifact.model_copy(update={"metrics": artifact.metrics | {"rollout/steps": (99.0, "sum")}})
    other = Artifact.model_validate(other.model_dump())
    assert list(check_index(storage, other, trajectories)) == ["the counts of the rollout are not those of its index"]


def test_a_replay_has_the_trajectories_that_the_order_names(made: tuple[Storage, Artifact, pa.Table], tmp_path: Path) -> None:
    storage, artifact, trajectories = made
    storage.write_table("advantages.parquet", pa.table({"id": ["a"]}))
    order = UpdateOrder(
        iteration=0,
        trajectories=[StoredTable(key=artifact.path, digest=artifact.digest)],
        advantages=StoredTable(key="advantages.parquet"),
        checkpoint_out="out",
    )
    aside = _inputs_of(storage, order, tmp_path / "aside")
    assert aside.read_table(artifact.path, artifact.digest).equals(trajectories)
