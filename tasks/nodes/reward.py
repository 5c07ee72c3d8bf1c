"""reward: scores every trajectory of a round, as a Ray Data map."""

import asyncio

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.infra.ray_data import map_tables
from nbrl.tasks.environments.questions import with_rules
from nbrl.tasks.layout import RoundLayout
from nbrl.tasks.metrics import Metric, of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services

BLOCK_ROWS = 256  # rows that one Ray task scores
COLUMNS = ["id", "group", "ability", "status", "answer", "steps"]
FACETS = ["total", "qa", "em", "f1", "answered", "format", "execution", "length"]


def with_references(trajectories: pa.Table, prompts: pa.Table) -> pa.Table:
    """Trajectories with what their answers are compared with: their question's `answers`, `rule` and `reference`."""
    prompts, groups = with_rules(prompts), prompts["group" if "group" in prompts.column_names else "id"].to_pylist()
    places = {group: place for place, group in enumerate(groups)}
    asked = prompts.select(["answers", "rule", "reference"]).take([places[group] for group in trajectories["group"].to_pylist()])
    table = trajectories.select(COLUMNS)
    for name in asked.column_names:
        table = table.append_column(name, asked[name])
    return table


def facet_means(rewards: pa.Table) -> dict[str, Metric]:
    """Mean of every facet, and exact match by ability."""
    metrics = {f"reward/{name}": float(pc.mean(rewards[name]).as_py() or 0.0) for name in FACETS}
    for ability in sorted(set(rewards["ability"].to_pylist())):
        chosen = rewards.filter(pc.equal(rewards["ability"], ability))
        metrics[f"reward/em/{ability}"] = float(pc.mean(chosen["em"]).as_py())
    return of(metrics, "mean")


async def score_trajectories(services: Services, layout: RoundLayout, trajectories: Artifact, prompts: pa.Table) -> Artifact:
    """Score the trajectories of a round against the prompts that they answer. Shared by training and evaluation."""

    def score() -> Artifact:
        rows = with_references(services.read(trajectories), prompts)
        blocks = [rows.slice(first, BLOCK_ROWS) for first in range(0, len(rows), BLOCK_ROWS)]
        rewards = map_tables(blocks, score_table, (services.config.reward,))
        digest = services.storage.write_table(layout.rewards, rewards)
        return Artifact(path=layout.rewards, digest=digest, metrics=facet_means(rewards))

    return await asyncio.to_thread(score)


@durable
async def reward(services: Services, scope: Scope, prompts: Artifact, trajectories: Artifact, round_: int) -> Artifact:
    """Compute the rewards of one round's trajectories; the ground truth is read here and nowhere before."""
    table = await asyncio.to_thread(services.read, prompts)
    return await score_trajectories(services, scope.layout.round(round_), trajectories, table)
