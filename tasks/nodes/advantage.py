"""advantage: turns step rewards of the selected trajectories into step advantages, or into the learner's input for them."""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbrl.tasks.advantage.estimate import ROUNDING, estimate
from nbrl.tasks.advantage.settings import ADVANTAGES_SCHEMA, REWARDS_SCHEMA, AdvantageSettings
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.metrics import Metric, of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import TRAJECTORIES
from nbrl.tasks.services.services import Services


def advantage_table(rewards: list[dict], settings: AdvantageSettings) -> pa.Table:
    """Return rows of ADVANTAGES_SCHEMA for the reward rows. A trajectory without a step has no row, but counts in its group."""
    if not any(reward["step_rewards"] for reward in rewards):
        return ADVANTAGES_SCHEMA.empty_table()
    arrays = estimate([r["step_rewards"] for r in rewards], [r["group"] for r in rewards], settings)
    if not all(np.isfinite(array).all() for array in arrays):
        raise BrokenInvariantError(
            f"the {settings.estimator} estimator made an advantage that is not finite; look at the step rewards"
        )
    rows = [
        {"trajectory": reward["trajectory"], "step": step, "advantage": float(value)}
        for reward, array in zip(rewards, arrays, strict=True)
        for step, value in enumerate(array)
    ]
    return pa.Table.from_pylist(rows, schema=ADVANTAGES_SCHEMA)


def reward_table(rewards: list[dict]) -> pa.Table:
    """Return rows of REWARDS_SCHEMA: the unchanged rewards, one row per step."""
    rows = [
        {"trajectory": reward["trajectory"], "step": step, "reward": value}
        for reward in rewards
        for step, value in enumerate(reward["step_rewards"])
    ]
    rows += [{"trajectory": reward["trajectory"]} for reward in rewards if not reward["step_rewards"]]
    return pa.Table.from_pylist(rows, schema=REWARDS_SCHEMA)


def kept_rows(rewards: Iterable[pa.Table], selections: Iterable[pa.Table]) -> list[dict]:
    """The rewards of the trajectories of the kept groups: of all, or of those that the selections name."""
    kept = {row["group"]: row.get(TRAJECTORIES) for selection in selections for row in selection.to_pylist() if row["kept"]}
    rows = [row for scored in rewards for row in scored.to_pylist() if row["group"] in kept]
    return [row for row in rows if (named := kept[row["group"]]) is None or row["trajectory"] in named]


@durable
def advantage(services: Services, scope: Scope, rewards: list[Artifact], selections: list[Artifact]) -> Artifact:
    """Compute advantages of every step of every kept group, over all rounds together.

    If the estimator needs what only the learner has (values, log-probs of the reference), the table holds the step rewards,
    and the learner applies the estimator to them before its first optimiser step.
    """
    rows = kept_rows(map(services.read, rewards), map(services.read, selections))
    table = reward_table(rows) if services.config.learner_estimates else advantage_table(rows, services.config.advantage)
    path = scope.layout.advantages
    digest = services.storage.write_table(path, table)
    counts = {"advantage/trajectories": float(len(rows)), "advantage/steps": float(pc.count(table["step"]).as_py())}
    metrics = of(counts, "sum")
    if "advantage" in table.column_names:
        metrics["advantage/max_abs"] = Metric(float(pc.max(pc.abs(table["advantage"])).as_py() or 0.0), "max")
    return Artifact(path=path, digest=digest, metrics=metrics)


def nothing_to_gain(metrics: Mapping[str, float]) -> str:
    """Why nothing can be learned from a table with these metrics; empty if something can."""
    if not metrics["advantage/steps"]:
        return "no trajectory took a step"
    if metrics.get("advantage/max_abs", 1.0) < ROUNDING:
        return "what was kept earned the same at every step, so that no advantage is left"
    return ""
