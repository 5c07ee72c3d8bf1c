"""From an order's two tables to the padded micro-batches of every rank."""

# ruff: noqa: N806, N815 - suffixes of tensor names are shapes

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from agent.trajectory import Node
from tasks.update.errors import UpdateError
from tasks.update.tree import PackedTree, pack

ADVANTAGES_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("advantage", pa.float64())])


@dataclass(frozen=True)
class Batch:
    """What an order trains on, the same on every rank, and the sequence that proves the new weights."""

    trees: list[PackedTree]
    canary_token_ids: list[int]

    @property
    def sampled_tokens(self) -> int:
        return sum(len(tree.target_N) for tree in self.trees)

    @property
    def tokens(self) -> int:
        return sum(tree.tokens for tree in self.trees)


def read_batch(trajectories: str, advantages: str, canary_tokens: int) -> Batch:
    """Raises UpdateError when the tables do not fit together or hold nothing to train on."""
    table = pq.read_table(advantages)
    if not table.schema.equals(ADVANTAGES_SCHEMA):
        raise UpdateError(f"{advantages} has columns {table.schema.names}, not {ADVANTAGES_SCHEMA.names} of their types")
    wanted: dict[str, dict[int, float]] = {}
    for row in table.to_pylist():
        steps = wanted.setdefault(row["trajectory"], {})
        if row["step"] in steps:
            raise UpdateError(f"two advantages for step {row['step']} of trajectory {row['trajectory']}")
        steps[row["step"]] = row["advantage"]
    rows = pq.read_table(trajectories, columns=["id", "nodes"]).to_pylist()
    found = {row["id"] for row in rows}
    if missing := sorted(set(wanted) - found):
        raise UpdateError(f"{len(missing)} trajectories have advantages but are not in {trajectories}, first {missing[0]}")
    if len(found) != len(rows):
        raise UpdateError(f"{trajectories} holds a trajectory twice")
    trees, canary = [], list[int]()
    for row in rows:
        if row["id"] not in wanted:
            continue
        nodes = [Node.model_validate(node) for node in row["nodes"]]
        try:
            tree = pack(nodes, wanted[row["id"]])
        except UpdateError as error:
            raise UpdateError(f"trajectory {row['id']}: {error}") from error
        if len(tree.target_N):
            trees.append(tree)
            canary = canary or first_sampled_path(nodes)[:canary_tokens]
    if not trees:
        raise UpdateError("the batch is empty: no sampled token has an advantage")
    return Batch(trees=trees, canary_token_ids=canary)


def first_sampled_path(nodes: Sequence[Node]) -> list[int]:
    """Ids from the root to the end of the first sampled node that has any."""
    index = next(i for i, node in enumerate(nodes) if node.kind == "sampled" and node.token_ids)
    ids: list[int] = []
    while index >= 0:
        ids[:0] = nodes[index].token_ids
        index = nodes[index].parent
    return ids


def deal(lengths: Sequence[int], ranks: int, budget: int) -> list[list[list[int]]]:
    """Indices of the trees by rank and micro-batch; every rank gets as many micro-batches, empty ones where trees ran out.

    Trees are dealt longest first, there and back, so that ranks weigh alike and neighbours in a micro-batch are of a length:
    longest * count <= budget, where a tree longer than the budget goes alone.
    """
    longest_first = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for place, index in enumerate(longest_first):
        turn, seat = divmod(place, ranks)
        hands[seat if turn % 2 == 0 else ranks - 1 - seat].append(index)
    dealt: list[list[list[int]]] = []
    for hand in hands:
        micro_batches: list[list[int]] = []
        for index in hand:
            if micro_batches and lengths[micro_batches[-1][0]] * (len(micro_batches[-1]) + 1) <= budget:
                micro_batches[-1].append(index)
            else:
                micro_batches.append([index])
        dealt.append(micro_batches)
    most = max(len(micro_batches) for micro_batches in dealt)
    return [micro_batches + [[] for _ in range(most - len(micro_batches))] for micro_batches in dealt]


@dataclass(frozen=True)
class MicroBatch:
    """B trees padded to T tokens, and the N targets of all of them. `row_N` indexes the B * T positions laid end to end."""

    input_ids_BT: Tensor
    positions_BT: Tensor
    end_BT: Tensor
    row_N: Tensor
    target_N: Tensor
    engine_logprob_N: Tensor
    advantage_N: Tensor

    def to(self, device: torch.device) -> "MicroBatch":
        return MicroBatch(**{name: value.to(device) for name, value in vars(self).items()})


def collate(trees: Sequence[PackedTree]) -> MicroBatch:
    """Pads with token 0 that sees and is seen by itself only. No tree at all gives one such token and no target."""
    width = max([tree.tokens for tree in trees], default=1)
    shape = (max(len(trees), 1), width)
    ids_BT, positions_BT = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    end_BT = np.tile(np.arange(1, width + 1), (shape[0], 1))
    for b, tree in enumerate(trees):
        ids_BT[b, : tree.tokens] = tree.input_ids_T
        positions_BT[b, : tree.tokens] = tree.positions_T
        end_BT[b, : tree.tokens] = tree.end_T
    empty = np.zeros(0)

    def joined(parts: list[np.ndarray], dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.concatenate([empty, *parts]), dtype=dtype)

    return MicroBatch(
        input_ids_BT=torch.from_numpy(ids_BT),
        positions_BT=torch.from_numpy(positions_BT),
        end_BT=torch.from_numpy(end_BT),
        row_N=joined([tree.predictor_N + b * width for b, tree in enumerate(trees)], torch.int64),
        target_N=joined([tree.target_N for tree in trees], torch.int64),
        engine_logprob_N=joined([tree.engine_logprob_N for tree in trees], torch.float64),
        advantage_N=joined([tree.advantage_N for tree in trees], torch.float64),
    )
