"""How often a deployment was run in vain, one time after the other, and when it is run again."""

from datetime import UTC, datetime, timedelta

from prefect import State
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Failed, Scheduled

from nbrl.flows.upkeep import AUTOMATION
from nbrl.tasks.services.restarts import first_line

RETRIES, FIRST_WAIT_S, FACTOR = 3, 60, 4  # after 1, 4 and 16 minutes
RETRYING = "Retrying"  # a failed state of another name is no failure that is reported


async def in_vain(client: PrefectClient, run: FlowRun) -> int:
    """Return how many flow runs of the same deployment, one directly before the other and this one, crashed or are retried."""
    if run.deployment_id is None:
        return 0
    ended = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED, StateType.FAILED, StateType.COMPLETED]))
    earlier = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[run.deployment_id]), state=ended),
        sort=FlowRunSort.START_TIME_DESC,
        limit=RETRIES + 2,
    )
    count = 0
    for each in earlier:
        if each.id == run.id:
            continue
        if each.state is None or not (each.state.is_crashed() or each.state.name == RETRYING):
            break
        count += 1
    return count


async def given_up(client: PrefectClient, run: FlowRun) -> State[None] | None:
    """Return the state of a flow run that is not begun, because those before it crashed too often; None where it is begun.

    Only one that was made because its predecessor crashed is given up: what is due, or started by hand, is always begun.
    """
    if run.created_by is None or run.created_by.type != AUTOMATION or (count := await in_vain(client, run)) <= RETRIES:
        return None
    return Failed(
        message=f"its process was killed {count} times in a row, perhaps for want of memory; it begins again when it is next due"
    )


async def retried(client: PrefectClient, run: FlowRun, error: Exception) -> State[None] | None:
    """Make the flow run that tries again what failed for this error, and return the state of this one; None after the last.

    It waits as a flow run of its own, so that what is due meanwhile can begin.
    """
    count = await in_vain(client, run)
    if run.deployment_id is None or count >= RETRIES:
        return None
    when = datetime.now(UTC) + timedelta(seconds=FIRST_WAIT_S * FACTOR**count)
    await client.create_flow_run_from_deployment(
        run.deployment_id,
        parameters=run.parameters,
        state=Scheduled(scheduled_time=when, message=f"tries again what ended with: {first_line(error)}"),
        name=f"{run.name}, again",
        tags=run.tags,
        idempotency_key=f"nbrl again {run.id}",
    )
    return Failed(name=RETRYING, message=f"{first_line(error)}; it is tried again at {when:%H:%M} UTC")
