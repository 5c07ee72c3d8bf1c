"""Registers deployments at a Prefect server, and serves them."""

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner
from prefect.states import Cancelled

from nbrl.flows.upkeep import kept_true, tidy
from nbrl.infra import prefect_server
from nbrl.infra.errors import ServerError
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.services.restarts import first_line

POOL = re.compile(r"\w[\w.-]*")
QUERY_S = 5.0


async def register(deployments: list[RunnerDeployment], pool: str, folder: Path) -> str:
    """Register the deployments at a work pool, which is created as one of processes if there is none; returns its type.

    Processes start in `folder`, in which relative paths of recipes and storages are looked for. Raises ConfigError for a name
    that no pool can have.
    """
    if not POOL.fullmatch(pool):
        raise ConfigError(f"--pool {pool!r} is no name of a work pool: give letters, digits, '.', '_' and '-'")
    async with get_client() as client:
        kind = await _pool(client, pool)
        for each in deployments:
            each.work_pool_name = pool
            each.job_variables = {"env": prefect_server.CLIENT}
            if kind == "process":
                each.job_variables["working_dir"] = str(folder)
            await settled(client, await each.aapply(), each)
    return kind


@contextmanager
def answered() -> Iterator[None]:
    """Raises ServerError, in a sentence, for what Prefect's server refuses or does not answer."""
    try:
        yield
    except httpx.HTTPError as error:
        raise ServerError(
            f"Prefect's server did not take this: {first_line(error)}; check that PREFECT_API_URL is its address and "
            "PREFECT_API_KEY or PREFECT_API_AUTH_STRING is the key it asks for"
        ) from error


async def settled(client: PrefectClient, identity: UUID, deployment: RunnerDeployment) -> UUID:
    """Return the id of a deployment that was created or changed, after its due flow runs are those of its schedule alone.

    Its schedule was changed in place, by its slug. Without a schedule it loses the one it had.
    """
    if not deployment.schedules:
        for schedule in await client.read_deployment_schedules(identity):
            await client.delete_deployment_schedule(identity, schedule.id)
    await tidy(client, await client.read_deployment(identity))
    return identity


async def _pool(client: PrefectClient, name: str) -> str:
    try:
        return (await client.read_work_pool(name)).type
    except ObjectNotFound:
        return (await client.create_work_pool(WorkPoolCreate(name=name, type="process"))).type


def serve(deployments: list[RunnerDeployment]) -> None:
    """Serve until SIGINT or SIGTERM; end the flow runs that are under way, and pause the schedules."""
    asyncio.run(_serve(deployments))


async def _serve(deployments: list[RunnerDeployment]) -> None:
    runner = Runner(name="nbrl", query_seconds=QUERY_S, limit=None, pause_on_shutdown=True)
    async with get_client() as client:
        served = list[UUID]()
        for each in deployments:
            each.paused = False
            served.append(await settled(client, await runner.aadd_deployment(each), each))
        async with kept_true(*served):
            await _until_stopped(client, runner, served)


async def _until_stopped(client: PrefectClient, runner: Runner, served: list[UUID]) -> None:
    """Run what is due until SIGINT or SIGTERM. Raises KeyboardInterrupt then."""
    running = asyncio.create_task(runner.start())
    stopped = asyncio.Event()
    await asyncio.sleep(0)  # the runner takes SIGTERM when it starts
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        await _cancel(client, served)
        await runner.astop()
    await running
    if stopped.is_set():
        raise KeyboardInterrupt


async def _cancel(client: PrefectClient, served: list[UUID]) -> None:
    """Set to Cancelled what is under way, before its processes are ended: one that still starts would count as crashed."""
    begun = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=served),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])),
    )
    for run in await client.read_flow_runs(flow_run_filter=begun):
        await client.set_flow_run_state(run.id, Cancelled(message="`nbrl schedule` was ended; it goes on next time"), force=True)
