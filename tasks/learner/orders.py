"""Work orders to the learner and their results. Tables and checkpoints are named by their keys on a storage."""

import io
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from nbrl.infra.closed import ClosedModel
from nbrl.infra.engine.weight_group import Bucket, WeightGroup
from nbrl.infra.storage import Storage
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.proof import Proof


class StoredTable(ClosedModel):
    """A table on the storage, and the SHA-256 of its bytes; empty if they are not to be compared."""

    key: str
    digest: str = ""


class TeachOrder(ClosedModel):
    """The teacher's log-probs of all tokens that have an advantage; the tables are as in UpdateOrder. It changes nothing."""

    trajectories: list[StoredTable]
    advantages: StoredTable


class UpdateOrder(ClosedModel):
    """The optimiser steps of one batch. The order is a pure function of its inputs: the same order gives the same checkpoint.

    `trajectories`: tables in agent.trajectory.SCHEMA. `advantages`: a table with columns trajectory (string), step (int32) and
    advantage (float64), one row for every sampled step of every trajectory to train on; other trajectories are ignored.
    `estimator`: if given, that table has the column reward instead of advantage, and the learner applies this estimator; a
    trajectory in which nothing was sampled may have one row with only its name, and then counts in its group.
    `teacher`: for a loss with a teacher, the table of its log-probs of all tokens that have an advantage.
    `seed` decides how trajectories are shuffled into minibatches.
    `initial`: the digest of the initial model, which is where the chain of checkpoints begins.
    `checkpoint_in`: the key of an earlier result's folder, or None for the initial model. `checkpoint_out`: that of the folder to
    make.
    `dtype`: numbers of the exported weights: float32, or those of the initial model's files.
    `steps`: optimiser steps, each on its share of the trajectories; None takes `epochs` and `minibatches` of the settings.
    `staleness`: updates between the weights that sampled and those of `checkpoint_in`; 0 where the loss does not read it.
    `proof_token_ids`: the sequence on which the new weights are proved; None takes sampled actions of the batch.
    `state`: whether the checkpoint gets the state to go on from: before the order is answered, later, beside what the learner
    does next, or not at all.
    `repeats`: where `checkpoint_in` has no state, the orders since the last checkpoint that has one, the oldest first.
    """

    iteration: int = Field(ge=0)
    seed: int = Field(0, ge=0)
    trajectories: list[StoredTable]
    advantages: StoredTable
    estimator: AdvantageSettings | None = None
    teacher: StoredTable | None = None
    initial: str = ""
    checkpoint_in: str | None = None
    checkpoint_out: str
    dtype: Literal["float32", "stored"] = "stored"
    steps: int | None = Field(None, ge=1)
    staleness: int = Field(0, ge=0)
    proof_token_ids: list[int] | None = Field(None, min_length=2)
    state: Literal["awaited", "later", "none"] = "awaited"
    repeats: list["UpdateOrder"] = Field([])

    @property
    def tables(self) -> list[StoredTable]:
        """Return the tables that it reads, those of `repeats` left out."""
        return [*self.trajectories, self.advantages, *([] if self.teacher is None else [self.teacher])]

    @property
    def base(self) -> str | None:
        """Return the checkpoint whose state this goes on from; None is the initial model."""
        return self.repeats[0].checkpoint_in if self.repeats else self.checkpoint_in


class OfferOrder(ClosedModel):
    """Rank 0 is to listen for the engines that take the weights of a checkpoint from it. It changes nothing on the storage.

    `cluster`: the engines may be on other machines. `limit_s`: of each wait for the engines.
    """

    checkpoint: str
    cluster: bool
    limit_s: float = Field(gt=0)


class Offer(ClosedModel):
    """An offer of weights: the address of rank 0, its buckets, and whether it has a GPU of its own to send from."""

    address: str
    port: int
    buckets: list[Bucket]
    cuda: bool


class SendOrder(ClosedModel):
    """Rank 0 is to send what it offered, twice: to be loaded, and to be compared."""

    group: WeightGroup


class AdapterOrder(ClosedModel):
    """Rank 0 is to send the adapter of a checkpoint, as that of the weights `version`, to the engine at `url`, whose requests
    must bring the key.
    """

    checkpoint: str
    version: str
    url: str
    key: str = Field(repr=False)
    limit_s: float = Field(gt=0)


class UpdateResult(BaseModel):
    """`proof` is what a publish of the checkpoint must prove. `order` is the digest of the order that was carried out.
    `skipped` says why an optimiser step was not taken, else it is empty; without any step the checkpoint has the old weights.
    `state` is the digest of weights and moments in memory, by which a repeated update is compared with this one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    iteration: int
    order: str = ""
    metrics: dict[str, float]
    checkpoint: str
    proof: Proof
    skipped: str = ""
    state: str = ""


Order = UpdateOrder | TeachOrder | OfferOrder | SendOrder | AdapterOrder
Result = UpdateResult | Offer | pa.Table | None


@dataclass(frozen=True)
class OrderTables:
    """The trajectories to train on, their advantages or rewards, and for a loss with a teacher its log-probs."""

    trajectories: pa.Table
    advantages: pa.Table
    teacher: pa.Table | None = None


def read_tables(order: UpdateOrder | TeachOrder, storage: Storage) -> OrderTables:
    """Read an order's tables; of its trajectories those that have advantages. Raises StorageError."""
    advantages = storage.read_table(order.advantages.key, order.advantages.digest)
    rounds = [storage.read_table(each.key, each.digest) for each in order.trajectories]
    selected = advantages["trajectory"].unique()
    kept = [table.filter(pc.is_in(table["id"], selected)) for table in rounds]
    chosen = pa.concat_tables(kept, promote_options="default")  # one of an earlier version may lack columns
    # Through a file's bytes: the digest of an order is of a table as it is read from one, which lays out its columns otherwise.
    buffer = io.BytesIO()
    pq.write_table(chosen, buffer)
    taught = order.teacher if isinstance(order, UpdateOrder) else None
    teacher = None if taught is None else storage.read_table(taught.key, taught.digest)
    return OrderTables(pq.read_table(buffer), advantages, teacher)
