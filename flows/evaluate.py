"""Batch evaluation of a model as a flow of Prefect: of a run's checkpoint, of a folder, or of one behind a server."""

import asyncio

from prefect import flow, get_run_logger, tags
from prefect.artifacts import acreate_markdown_artifact
from prefect.events import emit_event

from nbrl.flows.display.pages import counted, tag
from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.flows.evaluating import evaluated
from nbrl.flows.evaluation_plan import EvaluationPlan, planned
from nbrl.flows.evaluation_request import EvaluationRequest
from nbrl.infra.storage import Storage
from nbrl.tasks.evaluation.answers import markdown
from nbrl.tasks.evaluation.deliver import champion_score, try_deliver, unusable_champion
from nbrl.tasks.evaluation.summary import EvaluationSummary
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.nodes.durable import slug
from nbrl.tasks.nodes.evaluate import evaluate as evaluate_node
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.services.local import local_services
from nbrl.tasks.services.progress import Progress
from nbrl.tasks.services.start import evaluation_services

FINISHED, WORSE = "nbrl.evaluation.finished", "nbrl.evaluation.worse"  # events that Prefect's automations can act on


@flow(name="evaluate", flow_run_name="evaluate {order.name}", persist_result=False)
async def evaluate(order: EvaluationRequest | EvaluationPlan, take_over: bool = False) -> EvaluationSummary:
    """Ask a model all questions of an order and write answers, scores and report below `evaluations/<name>`.

    An evaluation that was stopped goes on where it was. Raises ConfigError for an order that cannot be met, and InfraError if
    another process works on it, which is stopped with `take_over`.
    """
    plan = order if isinstance(order, EvaluationPlan) else await asyncio.to_thread(planned, order)
    await tag(plan.config.name, plan.name)
    with ProgressDisplay(err, get_run_logger().info) as progress, tags(plan.config.name, plan.name):
        async with counted(progress, plan.name):
            services = local_services if plan.in_process else evaluation_services
            summary = await evaluated(plan, take_over, progress, services, evaluate_node)
        await _deliver(Storage(plan.config.storage), plan.config, summary, progress)
    return summary


async def _deliver(storage: Storage, config: RunConfig, summary: EvaluationSummary, progress: Progress) -> None:
    """Deliver a finished evaluation to MLflow, and to Prefect the events that an earlier process could not emit."""
    layout = EvaluationLayout(summary.name)
    await asyncio.to_thread(try_deliver, storage, config, summary.name, progress.say)
    if await asyncio.to_thread(storage.exists, layout.reported):
        return
    if unusable := await asyncio.to_thread(unusable_champion, storage, summary.recipe):
        progress.say(f"nbrl: warning: {unusable}")
    await acreate_markdown_artifact(markdown(summary, storage.uri(layout.answers)), key=slug("evaluation", summary.name))
    await asyncio.to_thread(emit_events, storage, summary)
    await asyncio.to_thread(storage.write_json, layout.reported, {"finished": summary.finished})


def emit_events(storage: Storage, summary: EvaluationSummary) -> None:
    """Emit FINISHED for an evaluation, and WORSE after it if the champion's success is known and higher."""
    success, champion = summary.scores[0].headline(summary.mode).value, champion_score(storage, summary)
    resource = {
        "prefect.resource.id": f"nbrl.evaluation.{summary.name}",
        "prefect.resource.name": summary.name,
        "nbrl.run": summary.subject.run,
        "nbrl.recipe": summary.recipe,
    }
    payload = {"success": success, "champion": champion, "updates": summary.subject.updates, "model": summary.subject.name}
    emit_event(FINISHED, resource, payload=payload | {"metrics": summary.metrics})
    if champion is not None and success < champion:
        emit_event(WORSE, resource, payload=payload)
