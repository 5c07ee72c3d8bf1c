"""Reading an order's tables."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nbrl.agent.trajectory import SCHEMA
from nbrl.tasks.advantage.estimate import REWARDS_SCHEMA
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.batch.batch import ADVANTAGES_SCHEMA, batch_of
from nbrl.tasks.learner.batch.examples import examples_of
from nbrl.tasks.learner.batch.micro_batch import to_device
from nbrl.tasks.learner.batch.tree import Forest
from tests.tasks.learner import update_lab


def test_only_trajectories_with_advantages_are_read(tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(1)
    order = update_lab.write_order(tmp_path, trajectories, "out")
    rows = [row for row in pq.read_table(tmp_path / "advantages.parquet").to_pylist() if row["trajectory"] in ("t1", "t4")]
    pq.write_table(pa.Table.from_pylist(rows, schema=ADVANTAGES_SCHEMA), tmp_path / "advantages.parquet")
    batch = batch_of(*update_lab.tables(order))
    assert batch.examples == 2
    first = trajectories[1]
    assert batch.forest.targets == sum(len(n.token_ids) for t in (first, trajectories[4]) for n in t.sampled())


def test_a_trajectory_without_a_step_is_read_for_its_group(tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(1, 2)
    early = trajectories[1].model_copy(update={"id": "early", "nodes": trajectories[1].nodes[:2]})
    order = update_lab.write_order(tmp_path, [*trajectories, early], "out", estimator=AdvantageSettings(estimator="rloo"))
    rows = [*pq.read_table(tmp_path / "advantages.parquet").to_pylist(), {"trajectory": "early", "step": None, "reward": None}]
    pq.write_table(pa.Table.from_pylist(rows, schema=REWARDS_SCHEMA), tmp_path / "advantages.parquet")
    batch = batch_of(*update_lab.tables(order), REWARDS_SCHEMA)
    assert (batch.groups, batch.steps[2]) == (["g"] * 3, {})
    assert batch.forest.targets == sum(len(n.token_ids) for t in trajectories for n in t.sampled())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "empty"),
        ([("nobody", 0, 1.0)], "not in"),
        ([("t0", 0, 1.0), ("t0", 0, 2.0)], "two advantages"),
        ([("t0", 77, 1.0)], "trajectory t0: steps"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, rows: list[tuple[str, int, float]], message: str) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), "out")
    table = pa.Table.from_pylist([dict(zip(ADVANTAGES_SCHEMA.names, row, strict=True)) for row in rows], schema=ADVANTAGES_SCHEMA)
    pq.write_table(table, tmp_path / "advantages.parquet")
    with pytest.raises(UpdateError, match=message):
        batch_of(*update_lab.tables(order))


def test_other_columns_are_refused(tmp_path: Path) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), "out")
    pq.write_table(pa.table({"trajectory": ["t0"], "advantage": [1.0]}), tmp_path / "advantages.parquet")
    with pytest.raises(UpdateError, match="columns"):
        batch_of(*update_lab.tables(order))


@pytest.mark.parametrize("name", ["parent", "kind", "step", "token_ids", "logprobs", "a token", "a log-prob"])
def test_nodes_with_missing_values_are_refused(name: str) -> None:
    node = {"parent": -1, "kind": "sampled", "step": 0, "token_ids": [1, 2], "logprobs": [-0.5, -0.5], "weights_version": "0"}
    missing = {"a token": {"token_ids": [1, None]}, "a log-prob": {"logprobs": [-0.5, None]}}.get(name, {name: None})
    trees = pa.array([[node | missing]], SCHEMA.field("nodes").type)
    with pytest.raises(UpdateError, match="missing values"):
        examples_of(pa.table({"id": ["t"], "nodes": trees}), {"t": {0: 1.0}})


def test_no_example_makes_a_micro_batch_without_targets() -> None:
    micro = to_device(Forest([]).pack([]), torch.device("cpu"))
    assert len(micro.input_ids_T) == 1
    assert len(micro.predictor_N) == 0
