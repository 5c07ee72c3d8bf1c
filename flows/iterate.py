"""One iteration as a DAG: sample → rollout → reward → select → advantage → update → publish → record."""

import time

from prefect import flow

from nbrl.flows.collect import collect
from nbrl.flows.learn import learn
from nbrl.tasks.nodes.record import Timing, seconds_of
from nbrl.tasks.runs.history import Position, Record
from nbrl.tasks.runs.scope import Scope
from nbrl.tasks.services.services import Services


@flow(name="iterate", validate_parameters=False, flow_run_name="{scope.run} {scope.title}", persist_result=False)
async def iterate(services: Services, scope: Scope, start: Position) -> Record:
    """Collect a batch, whose prompts begin at `start`, and learn from it."""
    started = time.monotonic()
    batch = await collect(services, scope, start)
    return await learn(services, scope, batch, Timing(started, seconds_of(batch.trajectories)))
