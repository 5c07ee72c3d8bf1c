"""advantage: step rewards of the selected trajectories to step advantages."""

import numpy as np
import pyarrow as pa

from tasks.advantage.grpo import grpo
from tasks.advantage.reinforce_pp import reinforce_pp
from tasks.advantage.rloo import rloo
from tasks.errors import BrokenInvariantError
from tasks.node import node
from tasks.parts import Parts
from tasks.scope import Artifact, Scope

SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("advantage", pa.float64())])
ESTIMATORS = {"reinforce_pp": reinforce_pp, "grpo": grpo, "rloo": rloo}


def estimate(rewards: list[dict], estimator: str, gamma: float) -> pa.Table:
    """Rows of SCHEMA for the given reward rows, whose trajectories all have at least one step."""
    arrays = ESTIMATORS[estimator]([r["step_rewards"] for r in rewards], [r["group"] for r in rewards], gamma)
    if not all(np.isfinite(array).all() for array in arrays):
        raise BrokenInvariantError(f"the {estimator} estimator made an advantage that is not finite; look at the step rewards")
    rows = [
        {"trajectory": reward["trajectory"], "step": step, "advantage": float(value)}
        for reward, array in zip(rewards, arrays, strict=True)
        for step, value in enumerate(array)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@node
async def advantage(parts: Parts, scope: Scope, rewards: list[Artifact], selections: list[Artifact]) -> Artifact:
    """Advantages of every step of every kept group, over all rounds together."""
    read = parts.storage.read_table
    kept = {row["group"] for s in selections for row in read(s.path).to_pylist() if row["kept"]}
    rows = [row for r in rewards for row in read(r.path).to_pylist() if row["group"] in kept and row["step_rewards"]]
    settings = parts.config.advantage
    table = estimate(rows, settings.estimator, settings.gamma) if rows else SCHEMA.empty_table()
    path = f"{scope.folder}/advantages.parquet"
    digest = parts.storage.write_table(path, table)
    return Artifact(
        path=path, digest=digest, metrics={"advantage/trajectories": float(len(rows)), "advantage/steps": float(len(table))}
    )
