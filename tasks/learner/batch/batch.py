"""Makes a forest of an order's tables. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.tasks.advantage.estimate import ADVANTAGES_SCHEMA, REWARDS_SCHEMA
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.arrays import Floats
from nbrl.tasks.learner.batch.examples import examples_of
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.token_logprobs import logprobs_in
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.orders import OrderTables, UpdateOrder
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.model_folder.config_json import CHOSEN, experts_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

COLUMNS = ["id", "group", "environment", "ability", "nodes"]


@dataclass(frozen=True)
class Batch:
    """The training data of an order, equal on every rank: examples, grouped together, merged into a forest.

    `trajectories`, `groups`, `steps` and `abilities` are indexed by example; `steps` has the value of each step in the table, an
    advantage or a reward, and an ability is named with its environment. The weights that sampled are `staleness` updates older
    than those that the update starts from. `teacher_N` are log-probs of the teacher, for a loss that has one.
    """

    forest: Forest
    trajectories: list[str]
    groups: list[str]
    steps: list[Mapping[int, float]]
    abilities: list[str]
    staleness: int = 0
    teacher_N: Floats | None = None

    @property
    def examples(self) -> int:
        return len(self.trajectories)


def batch_of(trajectories: pa.Table, advantages: pa.Table, schema: pa.Schema = ADVANTAGES_SCHEMA, staleness: int = 0) -> Batch:
    """Return the batch of two tables; `schema` is that of `advantages`.

    Raises UpdateError if the tables do not match or have no training data.
    """
    by_trajectory = _steps(advantages, schema)
    ids = trajectories["id"]
    known = set(ids.to_pylist())
    if missing := sorted(set(by_trajectory) - known):
        raise UpdateError(f"{len(missing)} trajectories have advantages but are not in the order's tables, first {missing[0]}")
    if len(known) != len(ids):
        raise UpdateError("the order's tables hold a trajectory twice")
    needed = trajectories.select([*COLUMNS, *(name for name in ("routes",) if name in trajectories.column_names)])
    chosen = needed.filter(pc.is_in(ids, pa.array(by_trajectory, pa.string())))
    trained = chosen.take(pc.sort_indices(chosen["group"]))
    examples = examples_of(trained, by_trajectory)
    forest = Forest(examples)
    if not forest.targets:
        raise UpdateError("the batch is empty: no sampled token has an advantage")
    named = zip(trained["environment"].to_pylist(), trained["ability"].to_pylist(), strict=True)
    abilities = [f"{environment}/{name}" for environment, name in named]
    steps = [example.advantages for example in examples]
    return Batch(forest, [example.trajectory for example in examples], trained["group"].to_pylist(), steps, abilities, staleness)


def _steps(table: pa.Table, schema: pa.Schema) -> dict[str, dict[int, float]]:
    """Return the advantages or rewards by trajectory and step."""
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


def make_batch(tables: OrderTables, order: UpdateOrder, settings: UpdateSettings, model: "PretrainedConfig") -> Batch:
    """Return the batch of an order. Raises UpdateError if it does not fit settings or model, or is empty."""
    if order.estimator is None and (settings.critic or settings.kl_in_reward):
        raise UpdateError("a critic and a KL in the reward act before the estimator: give the order rewards and the estimator")
    if order.estimator and order.estimator.with_critic != (settings.critic is not None):
        raise UpdateError(f"advantage.estimator {order.estimator.estimator} and update.critic do not fit together")
    schema = REWARDS_SCHEMA if order.estimator else ADVANTAGES_SCHEMA
    batch = batch_of(tables.trajectories, tables.advantages, schema, order.staleness)
    check_fits(batch.forest, model, order.proof_token_ids or ())
    if settings.router_replay:
        _check_routes(batch.forest, model)
    if settings.teacher is None:
        return batch
    if tables.teacher is None:
        raise UpdateError("update.loss distill needs the log-probs of its teacher: give the order their table")
    return replace(batch, teacher_N=logprobs_in(tables.teacher, batch.trajectories, Targets.of(batch.forest)))


def batch_to_teach(tables: OrderTables) -> Batch:
    """Return the batch whose tokens a teacher is to score. Raises UpdateError as `batch_of`."""
    schema = REWARDS_SCHEMA if "reward" in tables.advantages.column_names else ADVANTAGES_SCHEMA
    return batch_of(tables.trajectories, tables.advantages, schema)


def check_fits(forest: Forest, model: "PretrainedConfig", also: Sequence[int] = ()) -> None:
    """Raises UpdateError if a path or a token, of the forest or `also`, is more than the model takes."""
    deepest, longest = max(forest.depth), getattr(model, "max_position_embeddings", None)
    if longest is not None and deepest > longest:
        raise UpdateError(f"a trajectory has {deepest} tokens, the model takes {longest}")
    least, most = min(int(ids.min()) for ids in forest.ids), max(int(ids.max()) for ids in forest.ids)
    for token in (min(least, *(also or [0])), max(most, *(also or [0]))):
        if not 0 <= token < model.vocab_size:
            raise UpdateError(f"token id {token} is outside the model's vocabulary of {model.vocab_size}")


def _check_routes(forest: Forest, model: "PretrainedConfig") -> None:
    """Raises UpdateError if the engine names experts that the model does not have, or for other layers."""
    config, route_TX = model.get_text_config(), forest.pack().route_TX
    if route_TX is None:
        return
    layers, chosen, experts = config.num_hidden_layers, getattr(config, CHOSEN, 0), experts_of(config)
    if route_TX.shape[1] != layers * chosen or route_TX.max() >= experts:
        raise UpdateError(
            f"the engine named {route_TX.shape[1]} experts of a token, up to number {route_TX.max()}, and the model has {layers} "
            f"layers that choose {chosen} of {experts}"
        )


def minibatches(groups: Sequence[str], targets: Targets, epochs: int, count: int, seed: int) -> list[list[int]]:
    """Split the examples into `count` equal shares per epoch; every example with a sampled token is in one share per epoch.

    Complete groups are reshuffled each epoch, so that neighbours still share their prompt. A single share keeps the original
    order. With fewer examples than shares there are as many shares as examples.
    """
    examples = np.unique(targets.example_A).tolist()
    if count == 1:
        return [examples for _ in range(epochs)]
    draw = np.random.default_rng(seed)
    shares: list[list[int]] = []
    names = sorted(set(groups))
    for _ in range(epochs):
        rank = dict(zip(names, draw.permutation(len(names)).tolist(), strict=True))
        order = sorted(examples, key=lambda example: (rank[groups[example]], example))
        shares += [share.tolist() for share in np.array_split(np.array(order), min(count, len(order)))]
    return shares
