"""Automations at Prefect's server: a flow run whose process was killed begins again, and failures are reported."""

from datetime import timedelta
from typing import Any

from prefect import get_client
from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events import CallWebhook, ChangeFlowRunState, EventTrigger, Posture, RunDeployment

from nbrl.flows.deployments import TAG
from nbrl.flows.evaluate import WORSE

FAILED, CRASHED = "prefect.flow-run.Failed", "prefect.flow-run.Crashed"
HEARTBEAT, SILENT_S = "prefect.flow-run.heartbeat", 120.0  # four heartbeats
AT_ONCE = timedelta(0)
FAILURES, WORSENED = "nbrl: a flow run failed", "nbrl: an evaluation is worse than the champion's"
# The parameters of the flow run that crashed, which need not be those of its deployment.
ORDER = {"__prefect_kind": "jinja", "template": "{{ flow_run.parameters.order | tojson }}"}
SAME = {"order": {"__prefect_kind": "json", "value": ORDER}}
REPORT = (
    '{"flow_run": {{ flow_run.name | tojson }}, "run": {{ (flow_run.parameters.order.run or flow_run.parameters.order.model or '
    'flow_run.name) | tojson }}, "state": {{ flow_run.state.name | tojson }}, "reason": {{ flow_run.state.message | tojson }}, '
    '"time": {{ event.occurred.isoformat() | tojson }}}'
)
SCORES = (
    '{"evaluation": {{ event.resource.name | tojson }}, "success": {{ event.payload.success }}, '
    '"champion": {{ event.payload.champion }}, "time": {{ event.occurred.isoformat() | tojson }}}'
)


async def keep_automations(webhook: str = "", only: bool = False) -> None:
    """Make the automations that are not there yet, or differ: one that is as it should be keeps what it waits for.

    A flow run without a sign of life has crashed, and the deployment of one that crashed is run at once. With `webhook`, Prefect
    POSTs there when a flow run of nbrl failed or crashed, and when an evaluation was worse than the champion's; without it, what
    reports is deleted where this user alone has automations of nbrl (`only`).
    """
    of_flow_runs = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}

    def ended(*events: str) -> EventTrigger:
        return EventTrigger(expect=set(events), match_related=of_flow_runs, posture=Posture.Reactive, threshold=1, within=AT_ONCE)

    silent = EventTrigger(
        after={HEARTBEAT},
        expect={"prefect.flow-run.*"},
        match_related=of_flow_runs,
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=SILENT_S),
    )
    crashed = ChangeFlowRunState(state=StateType.CRASHED, message=f"no sign of life for {SILENT_S:.0f} s")
    again = RunDeployment(source="inferred", deployment_id=None, parameters=SAME)
    made: dict[str, tuple[EventTrigger, Any]] = {
        "nbrl: a flow run without a sign of life has crashed": (silent, crashed),
        "nbrl: what crashed begins again": (ended(CRASHED), again),
    }
    if webhook:
        block = await Webhook(url=webhook).asave("nbrl-reports", overwrite=True)
        worse = EventTrigger(expect={WORSE}, posture=Posture.Reactive, threshold=1, within=AT_ONCE)
        made[FAILURES] = ended(FAILED, CRASHED), CallWebhook(block_document_id=block, payload=REPORT)
        made[WORSENED] = worse, CallWebhook(block_document_id=block, payload=SCORES)
    async with get_client() as client:
        for name in (FAILURES, WORSENED) if only and not webhook else ():
            for each in await client.read_automations_by_name(name):
                await client.delete_automation(each.id)
        for name, (trigger, action) in made.items():
            await _keep(client, Automation(name=name, trigger=trigger, actions=[action], tags=[TAG]))


async def _keep(client: PrefectClient, wanted: Automation) -> None:
    """Make an automation, in place of others of its name. One that is equal is left alone, switched on or off."""
    there = await client.read_automations_by_name(wanted.name)
    equal = [each for each in there if _what_it_does(each) == _what_it_does(wanted)]
    for each in there:
        if each not in equal[:1]:
            await client.delete_automation(each.id)
    if not equal:
        await wanted.acreate()


def _what_it_does(automation: Any) -> Any:
    actions = [action.model_dump(mode="json") for action in automation.actions]
    return automation.trigger.model_dump(mode="json", exclude={"id"}), actions
