"""Keeps what Prefect shows of flow runs true: those whose process is gone have crashed, and those that are due have names."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Crashed

from nbrl.infra.process.identity import identity, is_running

PROCESS = "nbrl.process"  # the label of a flow run with the process that runs it
TOP, BELOW = ["train", "evaluate", "prepare", "clean", "nightly"], ["iterate", "collect", "learn"]
ALIVE = [StateType.PENDING, StateType.RUNNING]
ENDED = [StateType.CRASHED, StateType.FAILED, StateType.CANCELLED, StateType.COMPLETED]
EVERY_S = 30.0
MOST = 200  # flow runs of a kind that are looked at in one go
GONE = "its process ended without saying why"
REFUSED = "Deployment concurrency limit reached."
AUTOMATION = "AUTOMATION"  # what made a flow run


async def label(client: PrefectClient, run: UUID) -> None:
    """Note at a flow run that this process runs it."""
    await client.update_flow_run_labels(run, {PROCESS: identity()})


@asynccontextmanager
async def kept_true(*deployments: UUID) -> AsyncIterator[None]:
    """End what has no process, and tidy the flow runs of these deployments, now and every half minute until the end."""

    async def keep() -> None:
        while True:
            # What fails is done the next time: it is for people who look, and no work depends on it.
            with suppress(httpx.HTTPError, PrefectException):
                async with get_client() as client:
                    await end_orphans(client)
                    for each in deployments:
                        await tidy(client, await client.read_deployment(each))
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def end_orphans(client: PrefectClient) -> None:
    """Set to Crashed the flow runs of nbrl whose process on this machine is gone, with the flow runs and tasks below them.

    Those of others stay, whatever their flows are named: a flow run of nbrl, or one above it, says which process runs it.
    """
    for run in await _alive(client, TOP):
        if is_running(str(run.labels.get(PROCESS, ""))) is False:
            await client.set_flow_run_state(run.id, Crashed(message=GONE), force=True)
    for run in await _alive(client, BELOW):
        parent = await _parent(client, run)
        if parent is not None and parent.state is not None and parent.state.is_final() and await _is_ours(client, parent):
            await client.set_flow_run_state(run.id, Crashed(message=GONE), force=True)
    # The end of a task reaches the server later than that of its flow run, for it is an event.
    ended = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=ENDED)),
        end_time=FlowRunFilterEndTime(before_=datetime.now(UTC) - timedelta(seconds=EVERY_S)),
    )
    tasks = await client.read_task_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[*TOP, *BELOW])),
        flow_run_filter=ended,
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=ALIVE))),
        limit=MOST,
    )
    for task in tasks:
        if task.flow_run_id is not None and await _is_ours(client, await client.read_flow_run(task.flow_run_id)):
            await client.set_task_run_state(task.id, Crashed(message=GONE), force=True)


async def _is_ours(client: PrefectClient, run: FlowRun) -> bool:
    """Return whether this flow run, or one above it, is one of nbrl."""
    above: FlowRun | None = run
    while above is not None and PROCESS not in above.labels:
        above = await _parent(client, above)
    return above is not None


async def _alive(client: PrefectClient, flows: list[str]) -> list[FlowRun]:
    return await client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=flows)),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=ALIVE))),
        limit=MOST,
    )


async def _parent(client: PrefectClient, run: FlowRun) -> FlowRun | None:
    """Return the flow run that called this one; None if there is none."""
    if run.parent_task_run_id is None:
        return None
    try:
        task = await client.read_task_run(run.parent_task_run_id)
        return None if task.flow_run_id is None else await client.read_flow_run(task.flow_run_id)
    except ObjectNotFound:
        return None


async def tidy(client: PrefectClient, deployment: DeploymentResponse) -> None:
    """Name the flow runs of a deployment that are due, and delete those of no schedule and those refused for another one."""
    states = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.CANCELLED]))
    runs = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]), state=states),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=MOST,
    )
    schedules = {each.id: each.schedule for each in deployment.schedules}
    for run in runs:
        if run.state is None:
            continue
        if run.state.type == StateType.CANCELLED:
            unwanted = run.state.message == REFUSED
        else:
            unwanted = bool(run.auto_scheduled) and not await _is_due(run, schedules)
        with suppress(ObjectNotFound):  # another process did it
            if unwanted:
                await client.delete_flow_run(run.id)
            elif run.state.is_scheduled() and (name := _name(deployment, run)) != run.name:
                await client.update_flow_run(run.id, name=name)


async def _is_due(run: FlowRun, schedules: dict[UUID, Any]) -> bool:
    """Return whether one of the schedules made this flow run, and would make it now."""
    schedule = schedules.get(run.created_by.id) if run.created_by and run.created_by.id else None
    if schedule is None or run.expected_start_time is None:
        return False
    if not isinstance(schedule, CronSchedule):  # of a user's own
        return True
    from prefect.server.schemas.schedules import CronSchedule as Dates  # takes a second

    dates = Dates(cron=schedule.cron, timezone=schedule.timezone, day_or=schedule.day_or)
    return run.expected_start_time in await dates.get_dates(1, start=run.expected_start_time)


def _name(deployment: DeploymentResponse, run: FlowRun) -> str:
    """Return the name of a flow run that is due: for its time, or for the one that crashed; others keep theirs."""
    if run.created_by is not None and run.created_by.type == AUTOMATION:
        return f"{deployment.name}, again"
    if not run.auto_scheduled or run.expected_start_time is None:
        return run.name
    return f"{deployment.name}, due {run.expected_start_time.astimezone(UTC):%Y-%m-%d %H:%M}"
