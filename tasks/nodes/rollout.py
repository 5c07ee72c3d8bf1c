"""rollout: turns every prompt of a round into its group of trajectories."""

import asyncio
import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.tools.settings import CorpusSearch, SearchSettings, SimulatedSearch
from nbrl.agent.trajectory import Status
from nbrl.infra.parts import DIGEST, PART, ROW, parts_of
from nbrl.tasks.errors import BrokenInvariantError, RolloutError
from nbrl.tasks.layout.stages import RoundLayout
from nbrl.tasks.metrics import Metric, of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.recorded.store import as_round
from nbrl.tasks.reward.rules.rule import OF_SESSIONS
from nbrl.tasks.rollout.plan import RoundPlan
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.services import Services

CORPUS = CorpusSearch()
FAILURE_CHARS = 300  # shown of one


def task_rows(prompts: pa.Table, group_size: int, seed: int, search: SearchSettings = CORPUS) -> list[dict[str, Any]]:
    """Return one row per trajectory with what the agent may know of its prompt.

    The ground truth is left out, but for what the host needs meanwhile: the answers for a simulated search, the reference for a
    session, which is None for a question without one.
    """
    simulated = isinstance(search, SimulatedSearch)
    columns = ["id", "group", "question", "ability", "environment", "files", "collect", "answers"]
    columns += ["rule", "reference", "max_steps", "deadline_s"]
    return [
        {
            "id": f"{prompt['group']}-{sample}",
            "group": prompt["group"],
            "sample": sample,
            "question": prompt["question"],
            "ability": prompt["ability"],
            "environment": prompt["environment"],
            "files": prompt["files"],
            "collect": prompt["collect"],
            "answers": prompt["answers"] if simulated else [],
            "question_id": prompt["id"],
            "reference": prompt["reference"] if prompt["rule"] in OF_SESSIONS else None,
            "max_steps": prompt["max_steps"],
            "deadline_s": prompt["deadline_s"],
            "seed": derive_seed(seed, prompt["group"], sample),
        }
        for prompt in prompts.select(columns).to_pylist()
        for sample in range(group_size)
    ]


def rollout_metrics(index: pa.Table) -> dict[str, Metric]:
    """Return the counts of statuses, steps and tokens, in all, of each environment and of each of its abilities; and seconds.

    `busy_seconds` is from the first episode's start to the last one's end.
    """
    rows = index.drop_columns([PART, DIGEST, ROW, "failure", "versions"]).to_pylist()
    ran = [row for row in rows if row["started_at"]]
    metrics = {f"rollout/status/{status}": 0.0 for status in Status} | _counts(rows, "")
    for environment in sorted({row["environment"] for row in rows}):
        of_it = [row for row in rows if row["environment"] == environment]
        metrics |= _counts(of_it, f"/{environment}")
        for ability in sorted({row["ability"] for row in of_it}):
            metrics |= _counts([row for row in of_it if row["ability"] == ability], f"/{environment}/{ability}")
    metrics |= {
        "rollout/policy_seconds": sum(row["policy_seconds"] for row in rows),
        "rollout/kernel_seconds": sum(row["kernel_seconds"] for row in rows),
        "rollout/busy_seconds": max((row["started_at"] + row["seconds"] for row in ran), default=0.0)
        - min((row["started_at"] for row in ran), default=0.0),
    }
    return of(metrics, "sum")


def _counts(rows: list[dict[str, Any]], suffix: str) -> dict[str, float]:
    """Return the counts of these trajectories."""
    statuses = Counter(row["status"] for row in rows)
    return {f"rollout/status/{status}{suffix}": float(count) for status, count in statuses.items()} | {
        f"rollout/trajectories{suffix}": float(len(rows)),
        f"rollout/steps{suffix}": float(sum(row["steps"] for row in rows)),
        f"rollout/sampled_tokens{suffix}": float(sum(row["sampled_tokens"] for row in rows)),
    }


async def earlier_chunks(services: Services, scope: Scope, round_: int) -> tuple[str, ...]:
    """Return the folders in which earlier processes left what they finished of the round."""
    keys = await asyncio.to_thread(services.reads.keys_of, scope)
    return scope.layout.earlier_chunks(round_, scope.weights.digest, keys)


async def roll_out(
    services: Services, name: str, rows: list[dict[str, Any]], path: str, version: str, plan: RoundPlan
) -> Artifact:
    """Run all rows and write the index of their trajectories at `path`; they stay in the chunks that the runners wrote. Shared by
    training and evaluation; `name` is which.

    Raises RolloutError if more trajectories failed than `rollout.failed_share` allows, BrokenInvariantError if one was sampled
    from other weights than `version`.
    """
    index = await services.runners.run(
        rows,
        lambda: services.engines.addresses(version),
        plan,
        lambda done: services.progress.advanced(name, done, len(rows)),
        services.engines.check_health,
        services.progress.say,
    )
    check_failures(index, services.config.rollout.failed_share)
    if services.engines.reports_version:
        check_weights(pc.list_flatten(index["versions"]), version)
    digest = await asyncio.to_thread(services.storage.write_table, path, index)
    return Artifact(path=path, digest=digest, parts=parts_of(index), metrics=rollout_metrics(index))


def plan_of(services: Services, scope: Scope, round_: int, earlier: tuple[str, ...]) -> RoundPlan:
    """Return the plan of the trajectories of a round in training."""
    settings, config = services.config.rollout, services.config
    search = settings.tools.search
    trained = min(1.0, scope.iteration / search.noise_iterations) if isinstance(search, SimulatedSearch) else None
    chunks = scope.layout.round(round_).chunks(scope.weights.digest)
    max_steps = settings.horizon.at(scope.iteration) if settings.horizon else None
    return RoundPlan(
        chunks, earlier, config.sampling, config.engine, trained, max_steps=max_steps, routed=config.update.router_replay
    )


def check_failures(index: pa.Table, allowed_share: float) -> None:
    """Raises RolloutError if more trajectories failed than the share, rounded up, or all of them."""
    failures = index.filter(pc.equal(index["status"], Status.FAILED))["failure"].to_pylist()
    allowed = math.ceil(allowed_share * len(index) - 1e-9)  # 0.1 * 30 is a little more than 3
    if len(failures) > allowed or len(failures) == len(index):
        first = " ".join(failures[0].split())[:FAILURE_CHARS]
        raise RolloutError(
            f"{len(failures)} of {len(index)} trajectories failed for the infrastructure, of which rollout.failed_share = "
            f"{allowed_share:g} allows {allowed}; the first says: {first}\n"
            "Finished ones are kept: the same command tries only those that failed again."
        )


def check_weights(versions: pa.ChunkedArray, version: str) -> None:
    """Raises BrokenInvariantError unless every action, whose weights are among `versions`, was sampled from `version`."""
    sampled_from = set(versions.unique().to_pylist())
    if sampled_from - {version}:
        raise BrokenInvariantError(
            f"actions were sampled from weights {sorted(sampled_from)} where only {version!r} are published"
        )


async def recorded_round(services: Services, scope: Scope, prompts: pa.Table, layout: RoundLayout) -> Artifact:
    """Make a round of the sessions of agents elsewhere that its prompts name.

    Raises BrokenInvariantError if one was answered by older weights than those of the scope.
    """
    index = await asyncio.to_thread(as_round, services.storage, prompts, layout, scope.weights.digest)
    if old := [version for version in set(pc.list_flatten(index["versions"]).to_pylist()) if int(version) < scope.updates]:
        raise BrokenInvariantError(f"a session was answered by weights {old[0]!r}, and this batch begins with {scope.updates}")
    digest = await asyncio.to_thread(services.storage.write_table, layout.trajectories, index)
    return Artifact(path=layout.trajectories, digest=digest, parts=parts_of(index), metrics=rollout_metrics(index))


@durable
async def rollout(services: Services, scope: Scope, prompts: Artifact, round_: int) -> Artifact:
    """Run the groups of one round's prompts."""
    settings = services.config.rollout
    table = await asyncio.to_thread(services.read, prompts)
    if services.config.recorded is not None:
        return await recorded_round(services, scope, table, scope.layout.round(round_))
    version = await services.serve(scope)
    rows = task_rows(table, settings.group_size, scope.draw("rollout"), settings.tools.search)
    layout, earlier = scope.layout.round(round_), await earlier_chunks(services, scope, round_)
    path = layout.trajectories if settings.branch is None else layout.trunks
    return await roll_out(services, "rollout", rows, path, version, plan_of(services, scope, round_, earlier))
