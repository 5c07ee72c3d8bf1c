"""Work orders for a learner: trajectories shaped like L0's, with random tokens, and their tables on a storage."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor
from tree_update import OBSERVED, PROMPT, SAMPLED, TAIL

from gpu.row import Given
from nbrl.agent.trajectory import ROOT, Node, Status, Trajectory, to_table
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.advantage.estimate import ADVANTAGES_SCHEMA, REWARDS_SCHEMA
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder, UpdateResult
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.settings import UpdateSettings


def make_learner(given: Given, model: Path, device: torch.device | None = None, **fields: Any) -> Learner:
    """Return a learner of one rank with orders in the scratch folder, on the part's device unless another is given."""
    settings = UpdateSettings.model_validate({"workers": 1} | fields)
    places = Places(PlacedFolder(str(model)), Storage(StorageSettings(root=str(given.scratch))))
    return Learner(settings, places, device or given.device)


def make_trajectories(vocabulary: int, groups: int, rollouts: int, steps: int, scale: float, seed: int = 0) -> list[Trajectory]:
    """Return groups of rollouts whose lengths are `scale` times those of L0."""
    draw = np.random.default_rng(seed)

    def ids(length: int) -> list[int]:
        return [int(token) for token in draw.integers(0, vocabulary, max(1, round(length * scale)))]

    made = []
    for group in range(groups):
        prompt = ids(PROMPT)
        for sample in range(rollouts):
            nodes = [Node(parent=ROOT, kind="system", step=-1, token_ids=prompt)]
            trunk = 0
            for step in range(steps):
                action = ids(SAMPLED)
                nodes.append(Node(parent=trunk, kind="tail", step=step, token_ids=ids(TAIL)))
                logprobs = [-float(each) for each in draw.random(len(action))]
                nodes.append(Node(parent=len(nodes) - 1, kind="sampled", step=step, token_ids=action, logprobs=logprobs))
                nodes.append(Node(parent=trunk, kind="action", step=step, token_ids=action))
                nodes.append(Node(parent=len(nodes) - 1, kind="observation", step=step, token_ids=ids(OBSERVED)))
                trunk = len(nodes) - 1
            made.append(
                Trajectory(
                    id=f"{group}-{sample}", group=str(group), sample=sample, question="?", ability="a",
                    status=Status.ANSWERED, answer="", nodes=nodes, steps=[],
                )
            )  # fmt: skip
    return made


def write_order(given: Given, trajectories: Sequence[Trajectory], out: str, **fields: Any) -> UpdateOrder:
    """Write the tables and return their order; with an estimator the numbers of steps, of either sign, are rewards."""
    rewards = fields.get("estimator") is not None
    schema = REWARDS_SCHEMA if rewards else ADVANTAGES_SCHEMA
    pairs = [(each.id, node.step) for each in trajectories for node in each.nodes if node.kind == "sampled"]
    rows = [(name, step, (-1.0) ** number * (1 + number % 3)) for number, (name, step) in enumerate(pairs)]
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
    pq.write_table(to_table(trajectories), given.scratch / f"{out}-trajectories.parquet")
    pq.write_table(table, given.scratch / f"{out}-steps.parquet")
    return UpdateOrder(
        trajectories=[StoredTable(key=f"{out}-trajectories.parquet")],
        advantages=StoredTable(key=f"{out}-steps.parquet"),
        checkpoint_out=out,
        **({"iteration": 0} | fields),
    )


def weights(given: Given, of: UpdateResult) -> dict[str, Tensor]:
    """Return the weights that an update exported."""
    found: dict[str, Tensor] = {}
    for path in (given.scratch / of.checkpoint / "hf").glob("*.safetensors"):
        found |= load_file(path)
    return found


def proved(result: UpdateResult) -> list[float]:
    """Return the log-probs of the proof, of the new weights."""
    return [logprob for sequence in result.proof.sequences for logprob in sequence.logprobs]
