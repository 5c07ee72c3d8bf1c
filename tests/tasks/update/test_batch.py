"""Reading an order's tables, and dealing trees to ranks and micro-batches."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import update_lab
from hypothesis import given
from hypothesis import strategies as st

from tasks.update.batch import ADVANTAGES_SCHEMA, collate, deal, read_batch
from tasks.update.errors import UpdateError


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 120))
def test_every_tree_is_dealt_once_within_the_budget(lengths: list[int], ranks: int, budget: int) -> None:
    hands = deal(lengths, ranks, budget)
    assert sorted(index for hand in hands for micro in hand for index in micro) == list(range(len(lengths)))
    assert len({len(hand) for hand in hands}) == 1
    for micro in (micro for hand in hands for micro in hand if micro):
        assert len(micro) == 1 or max(lengths[index] for index in micro) * len(micro) <= budget
    weights = [sum(lengths[index] for micro in hand for index in micro) for hand in hands]
    assert max(weights) - min(weights) <= 2 * max(lengths)


def test_only_trajectories_with_advantages_are_read(tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(1)
    order = update_lab.write_order(tmp_path, trajectories, "out")
    rows = [row for row in pq.read_table(order.advantages).to_pylist() if row["trajectory"] in ("t1", "t4")]
    pq.write_table(pa.Table.from_pylist(rows, schema=ADVANTAGES_SCHEMA), order.advantages)
    batch = read_batch(order.trajectories, order.advantages, 20)
    assert len(batch.trees) == 2
    first = trajectories[1]
    assert batch.canary_token_ids == first.path(3)[:20]
    assert batch.sampled_tokens == sum(len(n.token_ids) for t in (first, trajectories[4]) for n in t.sampled())


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
    pq.write_table(table, order.advantages)
    with pytest.raises(UpdateError, match=message):
        read_batch(order.trajectories, order.advantages, 20)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), "out")
    pq.write_table(pa.table({"trajectory": ["t0"], "advantage": [1.0]}), order.advantages)
    with pytest.raises(UpdateError, match="columns"):
        read_batch(order.trajectories, order.advantages, 20)


def test_no_tree_makes_a_micro_batch_without_targets() -> None:
    micro = collate([])
    assert micro.input_ids_BT.shape == (1, 1)
    assert len(micro.row_N) == 0
