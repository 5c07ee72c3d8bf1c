"""reward: score every trajectory of a round, as a Ray Data map on the host."""

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.infra.ray_data import map_tables
from nbrl.tasks.nodes.durable import node
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services

COLUMNS = ["id", "group", "ability", "status", "answer", "steps"]
FACETS = ["total", "qa", "em", "f1", "answered", "format", "execution", "length"]


def with_answers(trajectories: pa.Table, prompts: pa.Table) -> pa.Table:
    """Trajectories with their question's references in the column `answers`."""
    groups = prompts["group" if "group" in prompts.column_names else "id"]
    references: dict[str, Any] = dict(zip(groups.to_pylist(), prompts["answers"].to_pylist(), strict=True))
    answers = [references[group] for group in trajectories["group"].to_pylist()]
    return trajectories.select(COLUMNS).append_column("answers", pa.array(answers, pa.list_(pa.string())))


def facet_means(rewards: pa.Table) -> dict[str, float]:
    """Mean of every facet, and exact match by ability."""
    metrics = {f"reward/{name}": float(pc.mean(rewards[name]).as_py() or 0.0) for name in FACETS}
    for ability in sorted(set(rewards["ability"].to_pylist())):
        chosen = rewards.filter(pc.equal(rewards["ability"], ability))
        metrics[f"reward/em/{ability}"] = float(pc.mean(chosen["em"]).as_py())
    return metrics


async def score_trajectories(services: Services, trajectories_path: str, prompts_path: str, rewards_path: str) -> Artifact:
    """Score a trajectories Parquet against the prompts it answers. Shared by training and evaluation."""
    rows = with_answers(services.storage.read_table(trajectories_path), services.storage.read_table(prompts_path))
    rewards = await asyncio.to_thread(map_tables, [rows], score_table, (services.config.reward,))
    digest = services.storage.write_table(rewards_path, rewards)
    return Artifact(path=rewards_path, digest=digest, metrics=facet_means(rewards))


@node
async def reward(services: Services, scope: Scope, prompts: Artifact, trajectories: Artifact, round_: int) -> Artifact:
    """Rewards of one round's trajectories; the ground truth is read here and nowhere before."""
    path = f"{scope.folder}/round-{round_}/rewards.parquet"
    return await score_trajectories(services, trajectories.path, prompts.path, path)
