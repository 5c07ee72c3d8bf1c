"""Registers deployments, and the automations that report of them, at a Prefect server."""

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
from prefect import get_client
from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
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
from prefect.events import CallWebhook, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.runner import Runner

from nbrl.flows.deployments import TAG
from nbrl.flows.evaluate import WORSE
from nbrl.infra import prefect_server
from nbrl.infra.errors import ServerError
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.services.restarts import first_line

POOL = re.compile(r"\w[\w.-]*")
FAILED = {"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}
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
            await apply(client, each)
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


async def apply(client: PrefectClient, deployment: RunnerDeployment) -> None:
    """Create the deployment, or change it to what it shall be; without a schedule it loses the one it had, and what was due."""
    identity = await deployment.aapply()
    if not deployment.schedules:
        for schedule in await client.read_deployment_schedules(identity):
            await client.delete_deployment_schedule(identity, schedule.id)
        due = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[identity]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        )
        while runs := [run for run in await client.read_flow_runs(flow_run_filter=due) if run.auto_scheduled]:
            for run in runs:
                await client.delete_flow_run(run.id)


async def _pool(client: PrefectClient, name: str) -> str:
    try:
        return (await client.read_work_pool(name)).type
    except ObjectNotFound:
        return (await client.create_work_pool(WorkPoolCreate(name=name, type="process"))).type


async def report_to(url: str) -> None:
    """Have Prefect POST to `url` when a flow run of nbrl failed, and when an evaluation was worse than the champion's."""
    block = await Webhook(url=url).asave("nbrl-reports", overwrite=True)
    related = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    failed = EventTrigger(expect=FAILED, match_related=related, posture=Posture.Reactive, threshold=1, within=timedelta(0))
    worse = EventTrigger(expect={WORSE}, posture=Posture.Reactive, threshold=1, within=timedelta(0))
    triggers = {
        "nbrl: a flow run failed": (
            failed,
            '{"flow_run": {{ flow_run.name | tojson }}, "state": {{ flow_run.state.message | tojson }}}',
        ),
        "nbrl: an evaluation is worse than the champion's": (
            worse,
            '{"evaluation": {{ event.resource.name | tojson }}, "success": {{ event.payload.success }}, '
            '"champion": {{ event.payload.champion }}}',
        ),
    }
    async with get_client() as client:
        for name, (trigger, payload) in triggers.items():
            automation = Automation(
                name=name, trigger=trigger, actions=[CallWebhook(block_document_id=block, payload=payload)], tags=[TAG]
            )
            for earlier in await client.read_automations_by_name(name):
                await client.delete_automation(earlier.id)
            await automation.acreate()


def serve(deployments: list[RunnerDeployment]) -> None:
    """Serve until SIGINT or SIGTERM; end the flow runs that are under way, and pause the schedules."""
    asyncio.run(_serve(deployments))


async def _serve(deployments: list[RunnerDeployment]) -> None:
    runner = Runner(name="nbrl", query_seconds=QUERY_S, limit=None, pause_on_shutdown=True)
    for each in deployments:
        each.paused = False
        await runner.aadd_deployment(each)
    running = asyncio.create_task(runner.start())
    stopped = asyncio.Event()
    await asyncio.sleep(0)  # the runner takes SIGTERM when it starts
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        await runner.astop()
    await running
    if stopped.is_set():
        raise KeyboardInterrupt
