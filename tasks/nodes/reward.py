"""reward: scores every trajectory of a round, as a map of Ray Data over the parts in which they lie."""

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Status
from nbrl.infra.parts import DIGEST, PART, ROW
from nbrl.tasks.layout.stages import RoundLayout
from nbrl.tasks.metrics import Metric, of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.reward.judge.graded import graded
from nbrl.tasks.reward.rules.rule import RULE
from nbrl.tasks.reward.score import CHILDREN, FACETS, check_unscored, referenced, score_parts, to_grade
from nbrl.tasks.rollout.chunks import blocks_of, in_order, places_of
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Runners, Services


def over_parts(
    runners: Runners, index: pa.Table, function: Callable[..., pa.Table], arguments: tuple[Any, ...], column: str
) -> pa.Table:
    """Return `function(rows of the index, *arguments)` as a map; a row for each of the index, in its order.

    `column` of the result is the trajectory's id.
    """
    return in_order(runners.map_tables(blocks_of(index), function, arguments), index["id"].to_pylist(), column)


def with_references(trajectories: pa.Table, prompts: pa.Table) -> pa.Table:
    """Return trajectories with what their answers are compared with: their question's `answers`, `rule` and `reference`."""
    return referenced(trajectories, references_of(prompts))


def references_of(prompts: pa.Table) -> pa.Table:
    """Return what answers are compared with, by the group of the trajectories."""
    groups = prompts["group" if "group" in prompts.column_names else "id"]
    columns = prompts.select(["answers", "rule", "reference", "environment"])
    return columns.append_column("group", groups)


def facet_means(rewards: pa.Table) -> dict[str, Metric]:
    """Return the mean of every facet, over all trajectories, over those of each environment, and of each of its abilities.

    Trajectories that failed for the infrastructure are left out.
    """
    rewards = rewards.filter(pc.not_equal(rewards["status"], Status.FAILED))
    metrics = _means(rewards, "")
    for environment in sorted(set(rewards["environment"].to_pylist())):
        of_it = rewards.filter(pc.equal(rewards["environment"], environment))
        metrics |= _means(of_it, f"/{environment}")
        for ability in sorted(set(of_it["ability"].to_pylist())):
            metrics |= _means(of_it.filter(pc.equal(of_it["ability"], ability)), f"/{environment}/{ability}")
    unscored = sum(bool(fault) for fault in rewards["unscored"].to_pylist())
    return of(metrics, "mean") | of({"reward/unscored": float(unscored)}, "sum")


def _means(rewards: pa.Table, suffix: str) -> dict[str, float]:
    """Return the mean of every facet of these trajectories, those of an environment of one's own included."""
    means = {f"reward/{name}{suffix}": float(pc.mean(rewards[name]).as_py() or 0.0) for name in FACETS}
    own: dict[str, list[float]] = {}
    for facets in rewards["own"].to_pylist():
        for facet in facets:
            own.setdefault(facet["name"], []).append(facet["value"])
    means |= {f"reward/own/{name}{suffix}": sum(values) / len(values) for name, values in sorted(own.items())}
    return means | _of_children(rewards, suffix)


def _of_children(rewards: pa.Table, suffix: str) -> dict[str, float]:
    """Return how many children a trajectory called on average, and what each earned itself; nothing where none can be called."""
    if CHILDREN.name not in rewards.column_names or not len(rewards):
        return {}
    totals = [sum(child["step_rewards"]) for row in rewards[CHILDREN.name].to_pylist() for child in row]
    mean = sum(totals) / len(totals) if totals else 0.0
    return {f"reward/children{suffix}": len(totals) / len(rewards), f"reward/child_total{suffix}": mean}


def check_scored(rewards: pa.Table) -> None:
    """Raises RewardError if scorers failed on more of the trajectories than are allowed."""
    check_unscored([fault for fault in rewards["unscored"].to_pylist() if fault], len(rewards))


async def score_trajectories(services: Services, layout: RoundLayout, trajectories: Artifact, prompts: pa.Table) -> Artifact:
    """Score the trajectories of a round against the prompts that they answer. Shared by training and evaluation.

    Where a model judges, it is asked before the answers are scored.
    """
    settings, storage, say = services.config.reward, services.storage, services.progress.say
    runners = services.runners
    references = references_of(prompts)
    index = await asyncio.to_thread(places_of, storage, trajectories.path, trajectories.digest)

    def to_be_graded() -> pa.Table:
        if settings.judge is None or RULE not in references["rule"].unique().to_pylist():
            return index.append_column("rule", pa.array([""] * len(index)))
        asked = over_parts(runners, index, to_grade, (storage, references), "id")
        for name in (PART, DIGEST, ROW):
            asked = asked.append_column(name, index[name])
        return asked

    rows = await graded(
        await asyncio.to_thread(to_be_graded), settings.judge, storage, lambda text: say(f"nbrl: reward.judge: {text}")
    )

    def score() -> Artifact:
        given = (storage, references, settings, services.config.agent.credit)
        rewards = over_parts(runners, rows, score_parts, given, "trajectory")
        check_scored(rewards)
        digest = services.storage.write_table(layout.rewards, rewards)
        return Artifact(path=layout.rewards, digest=digest, metrics=facet_means(rewards))

    return await asyncio.to_thread(score)


@durable
async def reward(services: Services, scope: Scope, prompts: Artifact, trajectories: Artifact, round_: int) -> Artifact:
    """Compute the rewards of one round's trajectories; the ground truth is read here and nowhere before."""
    table = await asyncio.to_thread(services.read, prompts)
    return await score_trajectories(services, scope.layout.round(round_), trajectories, table)
