"""Makes a forest of an order's tables, and moves a packed tree to a device."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from nbrl.tasks.advantage.tables import ADVANTAGES_SCHEMA
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.attention.tree_attention import TreeMask, tree_mask
from nbrl.tasks.learner.batch.examples import examples_of
from nbrl.tasks.learner.batch.tree import Forest, PackedTree, chain

COLUMNS = ["id", "group", "environment", "ability", "nodes"]


@dataclass(frozen=True)
class Batch:
    """The training data of an order, equal on every rank: examples, grouped together, merged into a forest.

    `trajectories`, `groups`, `steps` and `abilities` are indexed by example; `steps` has the value of each step in the table, an
    advantage or a reward, and an ability is named with its environment. The weights that sampled are `staleness` updates older
    than those that the update starts from.
    """

    forest: Forest
    trajectories: list[str]
    groups: list[str]
    steps: list[Mapping[int, float]]
    abilities: list[str]
    staleness: int = 0

    @property
    def examples(self) -> int:
        return len(self.trajectories)


def batch_of(trajectories: pa.Table, advantages: pa.Table, schema: pa.Schema = ADVANTAGES_SCHEMA, staleness: int = 0) -> Batch:
    """The batch of two tables; `schema` is that of `advantages`.

    Raises UpdateError if the tables do not match or have no training data.
    """
    by_trajectory = _steps(advantages, schema)
    ids = trajectories["id"]
    known = set(ids.to_pylist())
    if missing := sorted(set(by_trajectory) - known):
        raise UpdateError(f"{len(missing)} trajectories have advantages but are not in the order's tables, first {missing[0]}")
    if len(known) != len(ids):
        raise UpdateError("the order's tables hold a trajectory twice")
    needed = trajectories.select(COLUMNS)
    trained = needed.filter(pc.is_in(ids, pa.array(by_trajectory, pa.string()))).sort_by("group")
    examples = examples_of(trained, by_trajectory)
    forest = Forest(examples)
    if not forest.targets:
        raise UpdateError("the batch is empty: no sampled token has an advantage")
    named = zip(trained["environment"].to_pylist(), trained["ability"].to_pylist(), strict=True)
    abilities = [f"{environment}/{name}" for environment, name in named]
    steps = [example.advantages for example in examples]
    return Batch(forest, [example.trajectory for example in examples], trained["group"].to_pylist(), steps, abilities, staleness)


def _steps(table: pa.Table, schema: pa.Schema) -> dict[str, dict[int, float]]:
    """Advantages or rewards by trajectory and step."""
    if not table.schema.equals(schema):
        raise UpdateError(f"the table of advantages has columns {table.schema.names}, not {schema.names} of their types")
    name = schema.names[-1]
    by_trajectory: dict[str, dict[int, float]] = {}
    for row in table.to_pylist():
        steps = by_trajectory.setdefault(row["trajectory"], {})
        if row["step"] is None:  # a trajectory without a step
            continue
        if row[name] is None:
            raise UpdateError(f"step {row['step']} of trajectory {row['trajectory']} has no {name}")
        if row["step"] in steps:
            raise UpdateError(f"two {name}s for step {row['step']} of trajectory {row['trajectory']}")
        steps[row["step"]] = row[name]
    return by_trajectory


@dataclass(frozen=True)
class MicroBatch:
    """A packed tree on a device: T tokens to forward and N targets."""

    input_ids_T: Tensor
    positions_T: Tensor
    tree: TreeMask
    predictor_N: Tensor
    target_N: Tensor
    index_N: Tensor
    engine_logprob_N: Tensor
    advantage_N: Tensor


def to_device(tree: PackedTree, device: torch.device) -> MicroBatch:
    """Move a tree to a device. An empty tree becomes one token without a target, so that an idle rank stays in step."""
    if not len(tree.input_ids_T):
        tree = chain([0])
    return MicroBatch(
        input_ids_T=torch.from_numpy(tree.input_ids_T).to(device),
        positions_T=torch.from_numpy(tree.positions_T).to(device),
        tree=tree_mask(tree.end_T, device),
        predictor_N=torch.from_numpy(tree.predictor_N).to(device),
        target_N=torch.from_numpy(tree.target_N).to(device),
        index_N=torch.from_numpy(tree.index_N).to(device),
        engine_logprob_N=torch.from_numpy(tree.engine_logprob_N).to(device),
        advantage_N=torch.from_numpy(tree.advantage_N).to(device),
    )
