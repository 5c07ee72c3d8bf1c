"""Batch evaluation of a model: of a run's checkpoint, of a folder, or of one behind a server."""

import asyncio

from prefect import flow, get_run_logger, tags
from prefect.artifacts import acreate_markdown_artifact
from prefect.events import emit_event

from nbrl.flows.display.pages import counted, tag
from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.flows.evaluation_request import EvaluationPlan, EvaluationRequest, planned
from nbrl.flows.logs import lines_kept
from nbrl.infra.errors import MissingError
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation import summary as summaries
from nbrl.tasks.evaluation.answers import finish, markdown
from nbrl.tasks.evaluation.deliver import champion_score, try_deliver, unusable_champion
from nbrl.tasks.evaluation.subject import Subject, model_folder
from nbrl.tasks.evaluation.summary import EvaluationSummary
from nbrl.tasks.layout.runs import EVALUATIONS, EvaluationLayout
from nbrl.tasks.nodes.durable import slug
from nbrl.tasks.nodes.evaluate import evaluate as evaluate_node
from nbrl.tasks.runs import epochs
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.opening import opened
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.runs.sweep import sweep, sweep_stage
from nbrl.tasks.runs.warnings import review, warnings_of
from nbrl.tasks.runs.writer import Writer, writing
from nbrl.tasks.services.progress import Progress, timed
from nbrl.tasks.services.restarts import Restarts
from nbrl.tasks.services.start import evaluation_services

FINISHED, WORSE = "nbrl.evaluation.finished", "nbrl.evaluation.worse"  # events that Prefect's automations can act on


@flow(name="evaluate", flow_run_name="evaluate {order.name}", persist_result=False)
async def evaluate(order: EvaluationRequest | EvaluationPlan, take_over: bool = False) -> EvaluationSummary:
    """Ask a model all questions of an order and write answers, scores and report below `evaluations/<name>`.

    An evaluation that was stopped goes on where it was. Raises ConfigError for an order that cannot be met, and InfraError if
    another process works on it, which is stopped with `take_over`.
    """
    plan = order if isinstance(order, EvaluationPlan) else await asyncio.to_thread(planned, order)
    config, layout, storage = plan.config, EvaluationLayout(plan.name), Storage(plan.config.storage)
    await tag(config.name, plan.name)
    with ProgressDisplay(err, get_run_logger().info) as progress, tags(config.name, plan.name):
        _check_subject(storage, layout, plan.subject)
        with opened(plan.start, plan.name, storage, EVALUATIONS, plan.subject.digest) as run:
            storage.create_json(layout.subject, plan.subject.model_dump(mode="json"))
            if (done := summaries.read(storage, plan.name)) is not None:
                await _deliver(storage, config, done, progress)
                return done
            settings, commit = config.model_dump(mode="json"), await asyncio.to_thread(epochs.commit)
            async with (
                writing(run, storage, take_over, progress.say, settings, commit) as writer,
                lines_kept(storage, writer, progress, Home(config.home)),
                counted(progress, plan.name),
            ):
                for warning in await asyncio.to_thread(review if plan.subject.server else warnings_of, plan.start):
                    progress.say(f"nbrl: warning: {warning}")
                summary = await _as_writer(plan, writer, progress)
                progress.say(_line(summary))
        await _deliver(storage, config, summary, progress)
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


def _line(summary: EvaluationSummary) -> str:
    all_ = summary.scores[0]
    score = all_.headline(summary.mode)
    return (
        f"{summary.subject.name}: success {score.value:.3f} ({score.low:.3f} to {score.high:.3f}) over {all_.questions} questions"
    )


async def _as_writer(plan: EvaluationPlan, writer: Writer, progress: Progress) -> EvaluationSummary:
    """Clear away what earlier processes left, and evaluate, with new services after faults."""
    config, storage, layout = plan.config, Storage(plan.config.storage), EvaluationLayout(plan.name)
    await asyncio.to_thread(sweep, storage, writer)
    scope, restarts = writer.evaluation(Weights(digest=plan.subject.digest)), Restarts(config.restarts, progress.say)

    async def work() -> EvaluationSummary:
        with model_folder(config, plan.subject) as folder:
            async with evaluation_services(
                config, plan.subject.server or folder, str(scope.updates), layout.data, progress
            ) as services:
                restarts.up()
                progress.begin(f"evaluating {plan.subject.name}")
                result, seconds = await timed(progress, "all", evaluate_node(services, scope))
                await asyncio.to_thread(sweep_stage, storage, scope.layout, [result])
                return await asyncio.to_thread(finish, storage, layout, config, plan.subject, result, seconds)

    return await restarts.over(work)


def _check_subject(storage: Storage, layout: EvaluationLayout, subject: Subject) -> None:
    """Raises ConfigError if there is an evaluation of this name of another model."""
    try:
        earlier = Subject.model_validate(storage.read_json(layout.subject))
    except MissingError:
        return
    if earlier.digest != subject.digest:
        raise ConfigError(f"{layout.title} is of {earlier.name}, not of {subject.name}; choose another --name")
