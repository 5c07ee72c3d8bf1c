"""branch: takes some trajectories of a round up again in the middle, for the credit of single steps."""

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Status
from nbrl.infra.parts import parts_of
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.nodes.reward import over_parts
from nbrl.tasks.nodes.rollout import check_weights, earlier_chunks, plan_of, rollout_metrics, task_rows
from nbrl.tasks.rollout.branches import branch_rows, candidates, chosen
from nbrl.tasks.rollout.chunks import places_of
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


@durable
async def branch(services: Services, scope: Scope, prompts: Artifact, trunks: Artifact, round_: int) -> Artifact:
    """Continue trajectories of the round from some of their steps; return all trajectories, the new ones behind the others.

    A branch whose trunk is not played as it was recorded is not made, and counted. Raises BrokenInvariantError if an action was
    sampled from other weights than those of the scope.
    """
    config, layout = services.config, scope.layout.round(round_)
    settings = config.rollout.branch
    if settings is None:
        raise RuntimeError("a run without rollout.branch has no node branch")
    version = await services.serve(scope)
    index = await asyncio.to_thread(services.storage.read_index, trunks.path, trunks.digest)

    def planned() -> list[dict[str, Any]]:
        places = places_of(services.storage, trunks.path, trunks.digest)
        found = over_parts(services.runners, places, candidates, (services.storage, settings), "id")
        seed, table = scope.draw("branch"), services.read(prompts)
        rows = task_rows(table, config.rollout.group_size, scope.draw("rollout"), config.rollout.tools.search)
        return branch_rows(chosen(found, settings, seed), rows, places, settings, seed)

    rows, earlier = await asyncio.to_thread(planned), await earlier_chunks(services, scope, round_)
    made = index.slice(0, 0)
    if rows:
        every = await services.runners.run(
            rows,
            lambda: services.engines.addresses(version),
            plan_of(services, scope, round_, earlier),
            lambda done: services.progress.advanced("branch", done, len(rows)),
            services.engines.check_health,
            services.progress.say,
        )
        made = every.filter(pc.not_equal(every["status"], Status.FAILED))
    if services.engines.reports_version:
        check_weights(pc.list_flatten(made["versions"]), version)
    whole = pa.concat_tables([index, made])
    digest = await asyncio.to_thread(services.storage.write_table, layout.trajectories, whole)
    counts = {"branch/made": float(len(made)), "branch/not_made": float(len(rows) - len(made))}
    metrics = rollout_metrics(made) | of(counts, "sum")
    return Artifact(path=layout.trajectories, digest=digest, parts=parts_of(whole), metrics=metrics)
