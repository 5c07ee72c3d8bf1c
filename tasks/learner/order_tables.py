"""Reads the tables that an order names."""

import io
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nbrl.infra.storage import Storage
from nbrl.tasks.learner.orders import UpdateOrder


@dataclass(frozen=True)
class OrderTables:
    """The trajectories to train on, and their advantages or rewards."""

    trajectories: pa.Table
    advantages: pa.Table


def read_tables(order: UpdateOrder, storage: Storage) -> OrderTables:
    """Read an order's tables; of its trajectories those that have advantages. Raises StorageError."""
    advantages = storage.read_table(order.advantages.key, order.advantages.digest)
    rounds = [storage.read_table(each.key, each.digest) for each in order.trajectories]
    selected = advantages["trajectory"].unique()
    chosen = pa.concat_tables([table.filter(pc.is_in(table["id"], selected)) for table in rounds])
    # Through a file's bytes: the digest of an order is of a table as it is read from one, which lays out its columns otherwise.
    buffer = io.BytesIO()
    pq.write_table(chosen, buffer)
    return OrderTables(pq.read_table(buffer), advantages)
